"""Which URLs name a root, and what it is called in folder names."""

from __future__ import annotations

import pickle

import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.open import normalised, open_store, root_id


class TestRoots:
    """Which URLs name a root."""

    @pytest.mark.parametrize(
        "url",
        ["", "s3", "s3://", "s3:///a", "s3a://b/p", "/tmp/a", "file://a/b", "file://", "file:///", "file:/", "file:a",
         "file:/../a", "memory://",
         "memory:///a", " memory://a", "memory://a ", "s3://b/../c", "file:///a/./b", "s3://b\n/c", "http://a/b", "s3://b_%/p",
         "S3://bucket/p", "gs://b/p"],
    )  # fmt: skip
    def test_any_other_url_is_refused_with_what_is_allowed(self, url: str) -> None:
        """The error names the two kinds of root that last."""
        with pytest.raises(ConfigError) as caught:
            open_store(url)
        assert all(kind in caught.value.remedy for kind in ("s3://bucket/prefix", "file:///path"))

    def test_spellings_of_one_root_have_one_id(self) -> None:
        """The id depends on the place, not on slashes, and differs between places."""
        assert normalised("s3://bucket//a///b/") == "s3://bucket/a/b"
        assert normalised("file:////tmp//a/") == "file:///tmp/a"
        assert normalised("file:/tmp//a/") == "file:///tmp/a"
        assert root_id("file:/tmp/a") == root_id("file:///tmp/a")
        assert root_id("s3://bucket/a/") == root_id("s3://bucket//a")
        assert len({root_id(url) for url in ("s3://bucket/a", "s3://bucket/a/b", "memory://bucket/a")}) == 3

    def test_an_id_is_the_same_on_every_machine(self) -> None:
        """Folders that an older version named are found again."""
        assert root_id("s3://bucket/prefix") == "9737a7d8f5fcd8b8"

    def test_a_memory_store_without_a_name_stays_where_it_is(self) -> None:
        """It is private, so it cannot be sent elsewhere."""
        MemoryStore().put_if_absent("log/1", b"")
        assert MemoryStore().list("") == []
        with pytest.raises(TypeError):
            pickle.dumps(MemoryStore())
