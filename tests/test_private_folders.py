"""Folders in places that other users may write to are private."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from riffle_spark.private_folders import ForeignFolder, is_private, make_private, narrow, open_regular


def mode_of(path: Path) -> int:
    """Return the permissions of a path."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_and_its_missing_parents_are_made_private(tmp_path: Path) -> None:
    """A folder is made with its missing parents for this user alone, and making it again changes nothing."""
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        make_private(folder)
    assert [mode_of(path) for path in (folder, folder.parent)] == [0o700, 0o700]
    (tmp_path / "link").symlink_to(folder)
    make_private(tmp_path / "link")


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    """A folder cannot be made where a file is, and a file or a link to a folder is not narrowed."""
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(FileExistsError):
        make_private(file)
    (tmp_path / "link").symlink_to(tmp_path)
    for foreign in (file, tmp_path / "link"):
        with pytest.raises(ForeignFolder, match="symbolic link, or not a folder"):
            narrow(foreign)
    with pytest.raises(FileNotFoundError):
        narrow(tmp_path / "missing")


def test_narrowing_removes_the_rights_of_other_users(tmp_path: Path) -> None:
    """Narrowing a folder removes the rights of other users."""
    folder = tmp_path / "wide"
    folder.mkdir()
    folder.chmod(0o775)
    assert not is_private(folder)
    narrow(folder)
    assert (mode_of(folder), is_private(folder)) == (0o700, True)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A regular file is opened. A folder and a FIFO, which would block, are refused."""
    (tmp_path / "file").write_text("text")
    os.close(open_regular(tmp_path / "file"))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "fifo")
