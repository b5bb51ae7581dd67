"""Compile the kernel for views into the wheel where the builder has a compiler.

An editable install has no such library: there, kernel.cpp is compiled when it is first used.
"""

import platform
import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """Copy the package, and compile the kernel beside its source."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            compiler = runpy.run_path("src/smi/views/compiler.py")
            if reason := compiler["compile_for_wheel"](Path(self.build_lib, "smi", "views")):
                print(f"the wheel has no compiled kernel for views: {reason}")


class BdistWheel(bdist_wheel):
    """Name the platform of a wheel with a compiled kernel, and no version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        libraries = Path(self.bdist_dir, "smi", "views").glob("kernel-*.so")
        self.root_is_pure = not any(libraries)
        system = super().get_tag()[2]
        # A Python for both kinds of Mac; the libraries are for this one.
        return "py3", "none", system.replace("universal2", platform.machine())


setup(cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel})
