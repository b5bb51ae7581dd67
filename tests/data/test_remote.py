import fsspec
import pytest

from smi.data import remote
from smi.data.remote import (
    LostError,
    common_folder,
    describe,
    expand_pattern,
    fetch,
    is_folder,
    is_url,
    join,
    list_files,
    read,
)
from smi.errors import UserError
from support.web import serving


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(remote, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def web(tmp_path):
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "a.bin").write_bytes(bytes(range(256)) * 40)
    with serving(tmp_path / "served") as web:
        yield web


def test_a_file_is_read_whole_or_in_part(web, tmp_path):
    content = bytes(range(256)) * 40
    for location in (web.url("a.bin"), str(tmp_path / "served" / "a.bin")):
        assert read(location) == content
        assert read(location, 100, 300) == content[100:300]
        assert describe(location).num_bytes == len(content)
    fetch(describe(web.url("a.bin")), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content


@pytest.mark.parametrize("fault", [500, 503, 429, "cut"])
def test_a_failure_is_tried_again(web, tmp_path, fault):
    file = describe(web.url("a.bin"))
    web.faults["a.bin"] = [fault] * (remote.NUM_ATTEMPTS - 1)
    assert len(read(file.location, 0, 500)) == 500
    web.faults["a.bin"] = [fault] * (remote.NUM_ATTEMPTS - 1)
    fetch(file, tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_size == file.num_bytes


def test_a_slow_answer_is_given_up_and_tried_again(web, monkeypatch):
    monkeypatch.setattr(remote, "TIMEOUT_SECONDS", 0.3)
    web.faults["a.bin"] = ["hang"]
    assert len(read(web.url("a.bin"), 0, 500)) == 500


@pytest.mark.parametrize("fault", [503, "cut"])
def test_what_always_fails_is_lost_and_leaves_nothing(web, tmp_path, fault):
    file = describe(web.url("a.bin"))
    web.faults["a.bin"] = [fault] * 100
    with pytest.raises(LostError, match=r"a\.bin"):
        fetch(file, tmp_path / "copy")
    assert len(web.faults["a.bin"]) == 100 - remote.NUM_ATTEMPTS
    assert [path.name for path in tmp_path.iterdir()] == ["served"]


@pytest.mark.parametrize("status", [403, 404])
def test_what_cannot_pass_is_not_tried_again(web, status):
    file = web.url("a.bin")
    web.faults["a.bin"] = [status] * 10
    with pytest.raises(LostError):
        read(file, 0, 10)
    assert len(web.faults["a.bin"]) >= 8  # fsspec itself may ask once more


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a/{000..002}.tar", ["a/000.tar", "a/001.tar", "a/002.tar"]),
        ("a/{8..11}.tar", ["a/8.tar", "a/9.tar", "a/10.tar", "a/11.tar"]),
        ("{a,b}/{x,y}", ["a/x", "a/y", "b/x", "b/y"]),
        ("s3://bucket/{0..1}.tar", ["s3://bucket/0.tar", "s3://bucket/1.tar"]),
        ("plain", ["plain"]),
    ],
)
def test_braces(pattern, expected):
    assert expand_pattern(pattern) == expected


def test_stars_and_existing_names(tmp_path):
    for name in ("b.tar", "a.tar", "c.txt", "{x,y}.tar"):
        (tmp_path / name).touch()
    assert expand_pattern(f"{tmp_path}/?.tar") == [f"{tmp_path}/a.tar", f"{tmp_path}/b.tar"]
    assert expand_pattern(f"{tmp_path}/{{x,y}}.tar") == [f"{tmp_path}/{{x,y}}.tar"]


def test_a_folder_in_memory():
    memory = fsspec.filesystem("memory")
    for name in ("one/a.jpg", "one/b.tar", "two/c.tar"):
        memory.pipe(f"/remote/{name}", name.encode())
    try:
        assert [path for path, _ in list_files("memory://remote")] == [
            "one/a.jpg",
            "one/b.tar",
            "two/c.tar",
        ]
        assert {file.num_bytes for _, file in list_files("memory://remote/two")} == {9}
        assert expand_pattern("memory://remote/*/*.tar") == [
            "memory://remote/one/b.tar",
            "memory://remote/two/c.tar",
        ]
        assert is_folder("memory://remote/one")
        assert not is_folder("memory://remote/one/a.jpg")
        assert read("memory://remote/two/c.tar", 1, 4) == b"wo/"
    finally:
        memory.rm("/remote", recursive=True)


def test_locations():
    assert is_url("s3://a/b")
    assert not is_url("/a/b")
    assert not is_url("C:/a")
    assert join("/root", "a/b") == "/root/a/b"
    assert join("/root", "/a/b") == "/a/b"
    assert join("s3://bucket", "gs://other/a") == "gs://other/a"
    assert common_folder(["s3://b/x/1.tar", "s3://b/y/1.tar"]) == "s3://b"
    assert common_folder(["/a/b/1.tar", "/a/bc/1.tar"]) == "/a"
    assert common_folder(["/a/b/1.tar"]) == "/a/b"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("s3://bucket/a.tar", r"s3:// needs the package s3fs: pip install 'smi-ssl\[s3\]'"),
        ("nothing://a", "no way to read nothing://"),
    ],
)
def test_a_missing_protocol_is_one_sentence(url, sentence, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(UserError, match=sentence):
        read(url)
