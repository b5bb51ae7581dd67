"""Print the oldest allowed version of every dependency, as constraints for pip.

python .github/oldest.py > oldest.txt
pip install --constraint oldest.txt '.[dev]'
"""

import re
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
groups = [project["dependencies"], *project["optional-dependencies"].values()]
for requirement in sorted({requirement for group in groups for requirement in group}):
    print(re.sub(r">=([\d.]+),.*", r"==\1", requirement))
