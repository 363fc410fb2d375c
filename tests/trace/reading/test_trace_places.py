"""Traces in object stores: a real local S3 server where moto is here, and clear words where the extra is not."""

import importlib
import importlib.util
from pathlib import Path

import pytest

from tests.snapshots import training
from tests.traces import TraceBuilder
from tpmon.errors import UsageError
from tpmon.trace.analysis import analyze
from tpmon.trace.reading.read import read_trace
from tpmon.trace.reading.slice import choose_steps, write_slice
from tpmon.trace.reading.sources import are_snapshots, find_files, is_remote
from tpmon.trace.snapshot import analyze_snapshots

HAS_MOTO = all(importlib.util.find_spec(name) for name in ("moto", "flask", "s3fs", "boto3"))
needs_moto = pytest.mark.skipif(not HAS_MOTO, reason="no moto server here: pip install -e '.[cloud-test]'")


def test_only_stores_are_remote():
    assert all(map(is_remote, ("s3://b/t.json", "gs://b/t.json", "abfs://c@a.dfs/t.json", "az://c/t")))
    assert not any(map(is_remote, ("s3:/b", "/tmp/s3://x", "t.json", "file:///t.json", "https://x/t.json", "s3")))


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfs"])
def test_a_store_without_its_package_names_the_extra(scheme, monkeypatch):
    def refuse(name, *_more):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(UsageError, match=f"{scheme}:// needs the extra cloud") as error:
        read_trace(f"{scheme}://bucket/rank0.json")
    assert "'.[cloud]'" in error.value.try_this


@pytest.fixture
def store(monkeypatch):
    """Start an S3 server on this machine, and give a client of it."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    for key, value in (
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ACCESS_KEY_ID", "nobody"),
        ("AWS_SECRET_ACCESS_KEY", "nothing"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_CONFIG_FILE", "/dev/null"),
    ):
        monkeypatch.setenv(key, value)
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3", endpoint_url=url)
    client.create_bucket(Bucket="runs")
    yield client
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@needs_moto
def test_traces_in_a_bucket_are_read_like_files(store, tmp_path):
    for rank in range(2):
        built = TraceBuilder()
        for number in range(3):
            built.step(number, number * 100, 90).op("aten::mm", number * 100, 50)
        path = Path(built.write(tmp_path / f"rank{rank}.json.gz"))
        store.put_object(Bucket="runs", Key=f"night/rank{rank}.json.gz", Body=path.read_bytes())
    snapshot = Path(training().write(tmp_path / "s.pickle")).read_bytes()
    store.put_object(Bucket="runs", Key="night/s.pickle", Body=snapshot)
    store.put_object(Bucket="runs", Key="night/broken.json", Body=b"{}")
    names = [f"s3://runs/night/rank{rank}.json.gz" for rank in range(2)]
    assert find_files(["s3://runs/night/rank*.gz"]) == names
    assert find_files(["s3://runs/night"]) == ["s3://runs/night/broken.json", *names]
    report = analyze(names)
    assert [file.rank for file in report.files] == [0, 1]
    assert [file.overview.steps for file in report.files] == [3, 3]
    assert report.files[0].file_bytes == (tmp_path / "rank0.json.gz").stat().st_size
    assert are_snapshots(["s3://runs/night/s.pickle"])
    assert analyze_snapshots(["s3://runs/night/s.pickle"]).files[0].file_bytes == len(snapshot)
    choice = choose_steps(read_trace(names[1]), "1")
    write_slice(names[1], str(tmp_path / "part.json"), choice)
    assert analyze([str(tmp_path / "part.json")]).files[0].overview.steps == 1
    for wrong in ("s3://runs/night/none.json", "s3://none/t.json", "s3://runs/night/broken.json"):
        with pytest.raises(UsageError, match=wrong):
            read_trace(wrong)
    with pytest.raises(UsageError, match="nothing matches"):
        find_files(["s3://runs/x*.json"])
