"""Upload an export to Hugging Face's hub, in one commit.

license = check_repository("org/name")        # before the export is written
commit, private = upload(folder, "org/name", "Upload resnet18")
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smi.errors import UserError
from smi.inference.export_folder import CARD, HUB_EXPORT
from smi.inference.verify_export import reason_of
from smi.nn.weights import HUB_CONFIG, HUB_SCHEME, hub_export, require_network
from smi.terminal import announce

TOKEN = "run `hf auth login`, or set HF_TOKEN, with a token that may write"
# A repository with these alone holds no model: the hub's own page creates them.
NEW_FILES = {".gitattributes", CARD, "LICENSE"}


def check_repository(name: str) -> dict[str, Any]:
    """Raise a UserError for what would stop an upload, or if there is a model of someone else.

    Return the licence of the repository: what its page says under license, license_name and so on.
    """
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import RepositoryNotFoundError

    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII):
        raise UserError(f"{name!r} is not the name of a repository: write it as ORG/NAME")
    if constants.HF_HUB_OFFLINE:
        raise UserError("nothing is uploaded while HF_HUB_OFFLINE is set: unset it")
    if get_token() is None:
        raise UserError(f"there is no token for the hub: {TOKEN}")
    with _hub_errors(f"asking for {HUB_SCHEME}{name}"):
        require_network()
        try:
            info = HfApi().model_info(name)
        except RepositoryNotFoundError:
            return {}
    files = {file.rfilename for file in info.siblings or ()}
    place = f"{HUB_SCHEME}{name}@{info.sha}"
    if files - NEW_FILES and (HUB_CONFIG not in files or hub_export(place) is None):
        raise UserError(f"{HUB_SCHEME}{name} holds another model: choose another name")
    if info.card_data is None:
        return {}
    page = info.card_data.to_dict()  # type: ignore[no-untyped-call]
    return {key: value for key, value in page.items() if key.startswith("license")}


def upload(folder: Path, name: str, message: str) -> tuple[str, bool]:
    """Upload the files of an export; return the commit, and whether the repository is private.

    A new repository is private, so that nothing is published by mistake.
    """
    from huggingface_hub import HfApi

    hub = HfApi()
    files = sorted(HUB_EXPORT)
    announce(f"uploading {folder} to {HUB_SCHEME}{name}")
    with _no_bars(), _hub_errors(f"{folder} is written, but uploading it to {HUB_SCHEME}{name}"):
        hub.create_repo(name, private=True, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=name,
            folder_path=folder,
            allow_patterns=files,
            delete_patterns=files,  # those of an earlier export that this one does not have
            commit_message=message,
        )
        return commit.oid, bool(hub.model_info(name).private)


@contextmanager
def _no_bars() -> Iterator[None]:
    """Keep the client of the hub from drawing bars, also where nobody wants output."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    before = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not before:
            enable_progress_bars()


@contextmanager
def _hub_errors(doing: str) -> Iterator[None]:
    """Report an error of the hub or of the network as one sentence."""
    try:
        yield
    except Exception as error:  # the hub's client raises errors of several libraries
        raise UserError(f"{doing} failed: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Say what the hub refused, and how to continue."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return f"the hub does not accept the token. Please {TOKEN}"
    if status == 403:
        return f"the token may not write there. Name a repository of your own, or {TOKEN}"
    if status is None and error.__cause__ is not None:
        return _reason(error.__cause__)
    return reason_of(error)
