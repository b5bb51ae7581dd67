import json

import pytest
import torch

from smi.data import load
from smi.data.folders import is_held_out
from smi.data.sources import Source, dataset_label
from smi.errors import UserError
from support.web import serving


@pytest.fixture
def photos(tmp_path, draw):
    return [draw(tmp_path / "photos" / f"{i:02}.png", seed=i) for i in range(40)]


def paths(files):
    return [entry.path for entry in files.entries]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.txt", "photos/01.png\nphotos/00.png\n\n"),
        ("list.csv", "photos/01.png\nphotos/00.png\n"),
        ("list.csv", "file_name,size\nphotos/01.png,3\nphotos/00.png,4\n"),
        ("list.tsv", "path\tsize\nphotos/01.png\t3\nphotos/00.png\t4\n"),
        ("list.jsonl", '{"path": "photos/01.png"}\n{"image": "photos/00.png"}\n'),
    ],
)
def test_paths_in_the_order_of_the_list(tmp_path, photos, name, text):
    (tmp_path / name).write_text(text)
    files = Source(tmp_path / name).split("train")
    assert paths(files) == ["photos/01.png", "photos/00.png"]
    assert files.labels is None
    expected = load(photos[0].parent, resolution=8)
    store = load(tmp_path / name, resolution=8)
    assert torch.equal(store[:], expected[[1, 0]])
    assert dataset_label(tmp_path / name) == name


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("list.txt", "{path}\t{label}"),
        ("list.csv", "{path},{label}"),
        ("list.jsonl", '{{"path": "{path}", "label": "{label}"}}'),
    ],
)
def test_labels_and_held_out_images(tmp_path, photos, name, line):
    labels = ["cat" if i % 3 else "dog" for i in range(40)]
    lines = [line.format(path=p, label=w) for p, w in zip(photos, labels, strict=True)]
    (tmp_path / name).write_text("\n".join(lines))
    source = Source(tmp_path / name)
    train, val = source.split("train"), source.split("val")
    assert train.classes == ("cat", "dog")
    held_out = [str(path) for path in photos if is_held_out(str(path))]
    assert paths(val) == held_out
    assert sorted(paths(train) + paths(val)) == sorted(map(str, photos))
    words = {str(path): word for path, word in zip(photos, labels, strict=True)}
    assert [train.classes[i] for i in train.labels] == [words[path] for path in paths(train)]
    assert source.split("pretrain").labels is None


def test_splits_and_numbers(tmp_path, photos):
    lines = [
        {
            "path": f"photos/{i:02}.png",
            "label": [2, 10, 1][i % 3],
            "split": "val" if i > 30 else "train",
        }
        for i in range(40)
    ]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = Source(tmp_path / "list.jsonl")
    assert source.split("train").classes == ("1", "2", "10")
    assert len(source.split("val")) == 9
    assert source.all_images()[0].labels.tolist()[:3] == [1, 2, 0]


def test_urls_in_a_list_and_a_list_behind_a_url(tmp_path, photos):
    with serving(tmp_path) as web:
        lines = [web.url("photos/03.png"), "photos/04.png", web.url("photos/missing.png")]
        (tmp_path / "list.txt").write_text("\n".join(lines))
        expected = load(photos[0].parent, resolution=8)[[3, 4]]
        for source in (str(tmp_path / "list.txt"), web.url("list.txt")):
            store = load(source, resolution=8, max_bad_share=0.5)
            assert torch.equal(store[[0, 1]], expected)
            assert [bad.path for bad in store.bad] == [lines[2]]
            store.close()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", b"\n\n", "lists no images"),
        ("a.jsonl", b'{"path": "x"}\n{"label": 1}\n', "line 2 of .* is not an object with a path"),
        ("a.jsonl", b"[1]\n", "line 1 of"),
        ("a.csv", b"\xff\xfe", "is not a list in UTF-8"),
    ],
)
def test_wrong_lists_are_one_sentence(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        Source(tmp_path / name).split("train")


def test_several_folders_are_one_dataset(tmp_path, draw):
    for place, names in (("a/x", ("cat", "dog")), ("b", ("dog", "eel"))):
        for name in names:
            for i in range(20):
                draw(tmp_path / place / name / f"{i}.png", seed=i)
    source = Source(f"{tmp_path}/{{a/x,b}}")
    train, val = source.split("train"), source.split("val")
    assert train.classes == val.classes == ("cat", "dog", "eel")
    assert len(train) + len(val) == 80
    for files in (train, val, *source.all_images()):
        for path, label in zip(paths(files), files.labels, strict=True):
            assert files.classes[label] == path.split("/")[-2]
    single = Source(tmp_path / "b").split("val")
    assert [path for path in paths(val) if path.startswith("b/")] == [
        f"b/{path}" for path in paths(single)
    ]
    store = load(f"{tmp_path}/{{a/x,b}}", "val", resolution=8)
    assert torch.equal(store[-len(single) :], load(tmp_path / "b", "val", resolution=8)[:])


def test_a_folder_behind_a_url(tmp_path, draw):
    import fsspec

    for split in ("train", "val"):
        for i in range(4):
            draw(tmp_path / "set" / split / f"class{i % 2}" / f"{i}.png", seed=i)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "set"), "/far", recursive=True)
    try:
        source = Source("memory://far")
        assert paths(source.split("train")) == paths(Source(tmp_path / "set").split("train"))
        assert source.split("val").classes == ("class0", "class1")
        assert dataset_label("memory://far") == "far"
    finally:
        memory.rm("/far", recursive=True)


def test_a_dataset_of_the_hub(tmp_path, monkeypatch):
    """A stand-in for the hub: the same paths in a folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from smi.data import remote, sources
    from support.shards import jpeg

    folder = tmp_path / "hub" / "me/birds"
    (folder / "data").mkdir(parents=True)
    for split in ("train", "test", "extra"):
        table = pa.table({"image": [{"bytes": jpeg(i), "path": None} for i in range(3)]})
        pq.write_table(table, folder / "data" / f"{split}-00000-of-00001.parquet")

    def local(url):
        return url.replace("hf://datasets/", f"{tmp_path}/hub/")

    def files_below(url):
        for path in sorted((tmp_path / "hub").rglob("*.parquet")):
            yield str(path.relative_to(local(url))), remote.describe(str(path))

    monkeypatch.setattr(sources, "list_files", files_below)
    monkeypatch.setattr(
        sources, "find_shards", lambda found, *names: ([local(url) for url in found], *names)
    )
    found, name, _ = sources.find_on_hub("hf:me/birds")
    assert (len(found), name) == (3, "me/birds")
    found, _, _ = sources.find_on_hub("hf:me/birds:train")
    assert [path.rpartition("/")[2].split("-")[0] for path in found] == ["test", "train"]
    found, _, _ = sources.find_on_hub("hf:me/birds:extra")
    assert [path.rpartition("/")[2].split("-")[0] for path in found] == ["extra"]
    monkeypatch.setattr(sources, "list_files", lambda url: iter(()))
    with pytest.raises(UserError, match="no Parquet files of images"):
        sources.find_on_hub("hf:me/none")


def test_folders_inside_and_beside_one_another(tmp_path, draw):
    for i in range(3):
        draw(tmp_path / "photos" / f"{i}.png", seed=i)
        draw(tmp_path / "photos" / "extra" / f"{i}.png", seed=10 + i)
        draw(tmp_path / "set [1]" / f"{i}.png", seed=20 + i)
    (tmp_path / "list.txt").write_text(f"{tmp_path}/photos/0.png\n")
    for several in (
        f"{tmp_path}/{{photos,photos/extra}}",
        f"{{{tmp_path}/photos,{tmp_path}/list.txt}}",
        f"{{{tmp_path}/set [1],{tmp_path}/photos}}",
    ):
        store = load(several, "pretrain", resolution=8)
        assert len(store) >= 7
        assert store.bad == []
        store.close()
    with pytest.raises(UserError, match="nothing is called like"):
        Source(f"{tmp_path}/{{photos,none*}}").split("train")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "path,label\n,cat\n", "line 2 of .* has no path"),
        ("a.csv", '"' + "x" * 200_000 + '"', "is not a table of paths"),
        ("a.jsonl", "[" * 5000, "line 1 of"),
        ("a.jsonl", '{"path": "a.png", "split": "dev"}', "called 'dev': it must be train or val"),
    ],
)
def test_odd_lists_are_one_sentence(tmp_path, name, content, sentence):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=sentence):
        Source(tmp_path / name).split("train")


def test_odd_paths_are_bad_files(tmp_path, draw):
    for i in range(3):
        draw(tmp_path / f"{i}.png", seed=i)
    (tmp_path / "a.txt").write_text("0.png\n1.png\n2.png\nnul\0.png\n../none.png\n")
    store = load(tmp_path / "a.txt", resolution=8, max_bad_share=0.5)
    assert [bad.path for bad in store.bad] == ["nul\0.png", "../none.png"]
