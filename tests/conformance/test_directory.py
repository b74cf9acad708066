"""Every directory keeps one contract: on this machine, in a bucket of a real server, in an embedded store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qo.config.settings import S3Settings, Settings
from qo.errors import Contended, NotFound, UsageError
from qo.store.bucket_directory import BucketDirectory
from qo.store.directory import PAGE, Accepts, Directory, File, open_directory
from qo.store.local import LocalStore
from qo.store.local_directory import LocalDirectory, write_file
from qo.store.memory import MemoryStore
from support.servers.s3 import S3Server


async def listed(directory: Directory, accepts: Accepts | None = None) -> list[File]:
    return [file async for page in directory.list(accepts=accepts) for file in page]


async def paths(directory: Directory, accepts: Accepts | None = None) -> list[str]:
    return sorted(file.path for file in await listed(directory, accepts))


class DirectoryConformance:
    """Subclass with a fixture ``directory``, empty for each test."""

    MANY = PAGE + 5

    async def test_what_was_written_is_read(self, directory: Directory) -> None:
        await directory.write("a/b/c.txt", b"one")
        assert await directory.read("a/b/c.txt") == b"one"
        await directory.write("a/b/c.txt", b"another")
        assert await directory.read("a/b/c.txt") == b"another"
        with await directory.open("a/b/c.txt") as file:
            assert file.read(2) == b"an"

    async def test_a_missing_file_is_not_found(self, directory: Directory) -> None:
        await directory.write("there", b"")
        assert await directory.find("a") is None
        with pytest.raises(NotFound):
            await directory.read("a")
        with pytest.raises(NotFound):
            await directory.open("a")

    async def test_a_file_is_found_by_its_whole_path(self, directory: Directory) -> None:
        await directory.write("a/bc", b"four")
        found = await directory.find("a/bc")
        assert found is not None
        assert (found.path, found.size, found.is_link) == ("a/bc", 4, False)
        assert await directory.find("a/b") is None
        assert [found] == await listed(directory)

    async def test_an_etag_changes_with_the_content(self, directory: Directory) -> None:
        await directory.write("a", b"one")
        first = await directory.find("a")
        await directory.write("a", b"three")
        second = await directory.find("a")
        assert first is not None
        assert second is not None
        assert first.etag != second.etag

    async def test_a_file_that_is_too_large_is_not_read(self, directory: Directory) -> None:
        await directory.write("a", b"12345")
        assert await directory.read("a", bytes_max=5) == b"12345"
        with pytest.raises(UsageError, match="more than 4"):
            await directory.read("a", bytes_max=4)

    async def test_a_list_has_every_file_once_however_many_pages_they_fill(self, directory: Directory) -> None:
        names = [f"{number % 7}/{number:05d}" for number in range(self.MANY)]
        for start in range(0, len(names), 50):
            await asyncio.gather(*(directory.write(name, b"x") for name in names[start : start + 50]))
        assert await paths(directory) == sorted(names)

    async def test_the_files_of_a_directory_follow_each_other(self, directory: Directory) -> None:
        for path in ("a/1", "a/deep/2", "a/3", "b/1", "ab/1", "a/deep/4"):
            await directory.write(path, b"")
        seen = [file.path.partition("/")[0] for file in await listed(directory)]
        assert [top for at, top in enumerate(seen) if at == 0 or seen[at - 1] != top].count("a") == 1

    async def test_refused_names_are_not_listed_nor_what_lies_below_them(self, directory: Directory) -> None:
        for path in ("a", "_b", "c/d", "c/_e", "_f/g", "_f/h/i"):
            await directory.write(path, b"")
        assert await paths(directory, lambda name: not name.startswith("_")) == ["a", "c/d"]

    async def test_a_list_may_be_of_one_directory(self, directory: Directory) -> None:
        for path in ("a/1", "a/b/2", "ab/3", "4"):
            await directory.write(path, b"")
        found = [file.path async for page in directory.list(under="a/") for file in page]
        assert sorted(found) == ["a/1", "a/b/2"]
        assert [file async for page in directory.list(under="nowhere/") for file in page] == []

    async def test_only_the_first_creation_counts(self, directory: Directory) -> None:
        assert await directory.create("a/b", b"first")
        assert not await directory.create("a/b", b"second")
        assert await directory.read("a/b") == b"first"
        assert await paths(directory) == ["a/b"]

    async def test_of_many_creations_at_once_exactly_one_wins(self, directory: Directory) -> None:
        won = await asyncio.gather(*(directory.create("a", b"%d" % number) for number in range(4)))
        assert won.count(True) == 1
        assert await directory.read("a") == b"%d" % won.index(True)

    async def test_no_update_is_lost(self, directory: Directory) -> None:
        def one_more(content: bytes | None) -> bytes:
            return b"%d" % (int(content or b"0") + 1)

        async def add() -> int:
            try:
                return await directory.update("count", one_more)
            except Contended:
                return 0

        done = sum(await asyncio.gather(*(add() for _ in range(4))))
        assert done > 0
        assert int(await directory.read("count")) == done
        assert await paths(directory) == ["count"]

    async def test_an_update_may_leave_the_file_as_it_is(self, directory: Directory) -> None:
        assert not await directory.update("a", lambda content: None)
        assert await directory.find("a") is None
        await directory.write("a", b"one")
        assert not await directory.update("a", lambda content: None)
        assert await directory.read("a") == b"one"

    async def test_deleting_leaves_the_others_and_repeats_harmlessly(self, directory: Directory) -> None:
        for path in ("a/b/1", "a/b/2", "a/c/1", "d"):
            await directory.write(path, b"x")
        await directory.delete(["a/b/1", "a/b/2", "never/there"])
        await directory.delete(["a/b/1"])
        assert await paths(directory) == ["a/c/1", "d"]
        await directory.delete([])
        await directory.write("a/b/1", b"again")
        assert await paths(directory) == ["a/b/1", "a/c/1", "d"]

    async def test_many_files_are_deleted_at_once(self, directory: Directory) -> None:
        await asyncio.gather(*(directory.write(f"a/{number}", b"") for number in range(50)))
        await directory.write("b", b"")
        await directory.delete([f"a/{number}" for number in range(self.MANY)])
        assert await paths(directory) == ["b"]

    async def test_a_url_names_the_file(self, directory: Directory) -> None:
        assert directory.url("a/b").endswith(("/a/b", "#a/b"))


@pytest.mark.fast
class TestLocalDirectory(DirectoryConformance):
    @pytest.fixture
    def directory(self, tmp_path: Path) -> Directory:
        (tmp_path / "root").mkdir()
        return LocalDirectory(tmp_path / "root")


@pytest.mark.fast
class TestMemoryStore(DirectoryConformance):
    @pytest.fixture
    def directory(self) -> Directory:
        return BucketDirectory(MemoryStore(), "memory:#")


@pytest.mark.fast
class TestLocalStore(DirectoryConformance):
    @pytest.fixture
    async def directory(self, tmp_path: Path) -> AsyncIterator[Directory]:
        opened = BucketDirectory(await LocalStore.open(tmp_path), "local:#")
        yield opened
        await opened.close()


@pytest.mark.s3
class TestBucket(DirectoryConformance):
    @pytest.fixture
    async def directory(
        self, s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Directory]:
        for name, value in s3_server.environment(s3_bucket).items():
            monkeypatch.setenv(name, value)
        settings = Settings(s3=S3Settings(endpoint=s3_server.endpoint))
        opened = await open_directory(f"s3://{s3_bucket}/some/root", settings)
        yield opened
        await opened.close()

    async def test_nothing_outside_the_prefix_is_listed(self, directory: Directory, s3_server: S3Server) -> None:
        bucket = directory.url("").removeprefix("s3://").partition("/")[0]
        s3_server.admin.put_object(Bucket=bucket, Key="some/rooted", Body=b"")
        await directory.write("a", b"")
        assert await paths(directory) == ["a"]


# --- what only a directory of this machine can do ---


@pytest.mark.fast
async def test_a_directory_that_is_not_there_is_not_found_when_it_is_listed(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no directory"):
        await listed(LocalDirectory(tmp_path / "nowhere"))


@pytest.mark.fast
async def test_links_are_listed_and_never_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_bytes(b"x")
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").symlink_to(tmp_path / "secret")
    (root / "file").symlink_to(tmp_path / "secret" / "file")
    (root / "dead").symlink_to(tmp_path / "nowhere")
    directory = LocalDirectory(root)
    assert sorted((file.path, file.is_link) for file in await listed(directory)) == [
        ("dead", True),
        ("file", True),
        ("folder", True),
    ]
    await directory.delete(["folder", "file", "dead"])
    assert list(root.iterdir()) == []
    assert (tmp_path / "secret" / "file").exists()


@pytest.mark.fast
async def test_an_empty_directory_is_listed_and_can_be_deleted(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")  # No file: to open it would wait for ever.
    directory = LocalDirectory(tmp_path)
    assert await paths(directory) == ["a/b/"]
    await directory.delete(["a/b/"])
    assert not (tmp_path / "a").exists()


@pytest.mark.fast
@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", ".."])
async def test_no_path_leads_out_of_the_directory(tmp_path: Path, path: str) -> None:
    directory = LocalDirectory(tmp_path / "root")
    with pytest.raises(UsageError, match="no path below"):
        await directory.write(path, b"")
    with pytest.raises(UsageError, match="no path below"):
        await directory.delete([path])


@pytest.mark.fast
def test_a_write_that_fails_leaves_the_old_content_and_no_draft(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "in the way").write_bytes(b"")
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "folder", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("root", "directory", "file"), [(0o700, 0o700, 0o600), (0o750, 0o750, 0o640), (0o777, 0o775, 0o664)]
)
def test_files_are_as_open_as_their_root_whatever_the_umask(
    tmp_path: Path, root: int, directory: int, file: int
) -> None:
    place = tmp_path / "data"
    place.mkdir()
    place.chmod(root)
    for umask in (0o000, 0o027, 0o077):
        before = os.umask(umask)
        try:
            write_file(place / f"a{umask}" / "b" / "c.txt", b"x")
        finally:
            os.umask(before)
        modes = [path.stat().st_mode & 0o777 for path in (place / f"a{umask}", place / f"a{umask}" / "b")]
        assert modes == [directory, directory]
        assert (place / f"a{umask}" / "b" / "c.txt").stat().st_mode & 0o777 == file


@pytest.mark.fast
@pytest.mark.parametrize("location", ["", "/srv/data", "gs://bucket", "s3://", "data"])
async def test_a_location_that_names_no_directory_is_refused(location: str) -> None:
    with pytest.raises(UsageError, match="neither file:PATH nor s3"):
        await open_directory(location, Settings())


@pytest.mark.fast
async def test_locations_name_directories(tmp_path: Path) -> None:
    for location in (f"file:{tmp_path}/a", f"file://{tmp_path}/a", f"local:{tmp_path}/store", "memory:"):
        directory = await open_directory(location, Settings())
        await directory.write("b", location.encode())
        assert await directory.read("b") == location.encode()
        await directory.close()
    assert (tmp_path / "a" / "b").read_bytes() == f"file://{tmp_path}/a".encode()
