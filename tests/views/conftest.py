from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile the kernel once for all tests of views, into a temporary cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMI_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
