"""URLs of roots and the ids that folder names contain."""

from __future__ import annotations

import pickle
import sys

import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.open import masked, normalised, open_store, root_id


class TestRoots:
    """URLs of roots."""

    @pytest.mark.parametrize(
        "url",
        ["", "s3", "s3://", "s3:///a", "/tmp/a", "file://a/b", "file://", "file:///", "file:/", "file:a",
         "file:/../a", "memory://",
         "memory:///a", " memory://a", "memory://a ", "s3://b/../c", "file:///a/./b", "s3://b\n/c", "s3://b_%/p",
         "S3://bucket/p", "gs://", "gs://b_%/p", "gs://bucket/p?x", "abfss://container/p", "abfss://c@account/p", "az://C/p",
         "abfss://a:b@account.dfs.core.windows.net/p"],
    )  # fmt: skip
    def test_an_unsupported_url_is_refused_with_the_supported_kinds(self, url: str) -> None:
        """Any other URL is refused, and the error names the kinds of persistent roots."""
        with pytest.raises(ConfigError) as caught:
            open_store(url)
        allowed = ("s3://bucket/prefix", "gs://bucket/prefix", "abfss://container@account", "file:///path")
        assert all(kind in caught.value.remedy for kind in allowed)

    @pytest.mark.parametrize(
        ("url", "instead"),
        [
            ("hdfs://namenode:8020/state", "s3://"),
            ("hdfs:/state", "file:///path"),
            ("viewfs://cluster/state", "s3://"),
            ("dbfs:/state", "abfss://"),
            ("/dbfs/state", "abfss://"),
            ("file:///dbfs/state", "abfss://"),
            ("file:/dbfs/state", "abfss://"),
            ("/Volumes/main/default/state", "abfss://"),
            ("wasbs://container@account.blob.core.windows.net/state", "abfss://container@account"),
            ("abfs://container@account.dfs.core.windows.net/state", "abfss://container@account"),
            ("https://account.blob.core.windows.net/container/state", "abfss://container@account"),
            ("gcs://bucket/state", "gs://bucket/prefix"),
            ("oss://bucket/state", "s3_endpoint"),
        ],
    )
    def test_an_unsupported_file_system_is_refused_with_the_store_to_use(self, url: str, instead: str) -> None:
        """An unsupported file system is refused when the root is set, with the store to use instead."""
        for check in (normalised, open_store):
            with pytest.raises(ConfigError) as caught:
                check(url)
            assert instead in caught.value.remedy

    def test_a_plain_path_is_refused_with_its_url(self) -> None:
        """The user can copy the URL."""
        with pytest.raises(ConfigError, match="Set `root` to file:///data/state if") as refused:
            open_store("/data/state")
        assert refused.value.id == "RIFFLE-0442"

    def test_a_folder_that_only_starts_like_a_databricks_folder_is_allowed(self) -> None:
        """A folder whose name only starts like a Databricks folder is allowed."""
        assert normalised("file:///dbfs2/a") == "file:///dbfs2/a"
        assert normalised("file:///data/dbfs/a") == "file:///data/dbfs/a"

    def test_the_container_of_an_azure_root_is_shown_and_a_secret_masked(self) -> None:
        """The container of an Azure root is shown, and a secret is masked."""
        root = "abfss://state@account.dfs.core.windows.net/a"
        assert masked(root) == root
        assert masked(f"{root}?sig=secret") == f"{root}?***"
        assert (
            masked("abfss://user:secret@account.dfs.core.windows.net/a") == "abfss://***@account.dfs.core.windows.net/a"
        )
        assert masked("abfss://S3cret@account.dfs.core.windows.net/a") == "abfss://***@account.dfs.core.windows.net/a"

    @pytest.mark.parametrize(
        ("url", "module", "package"),
        [("gs://b12/p", "google.auth", "google-auth"), ("az://b12/p", "requests", "azure-identity")],
    )
    def test_the_error_for_a_missing_package_has_the_pip_command(
        self, url: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A missing client package is named with the pip command before a request is sent."""
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError) as caught:
            open_store(url)
        assert caught.value.id == "RIFFLE-0162"
        assert f"pip install '{package}" in caught.value.remedy

    def test_spellings_of_one_root_have_the_same_id(self) -> None:
        """Spellings of one root have the same id, and different roots have different ids."""
        assert normalised("s3://bucket//a///b/") == "s3://bucket/a/b"
        assert normalised("file:////tmp//a/") == "file:///tmp/a"
        assert normalised("file:/tmp//a/") == "file:///tmp/a"
        assert root_id("file:/tmp/a") == root_id("file:///tmp/a")
        assert root_id("s3a://bucket/a") == root_id("s3://bucket/a")
        assert normalised("abfss://c@account.dfs.core.windows.net//a/") == "abfss://c@account.dfs.core.windows.net/a"
        assert root_id("s3://bucket/a/") == root_id("s3://bucket//a")
        assert len({root_id(url) for url in ("s3://bucket/a", "s3://bucket/a/b", "memory://bucket/a")}) == 3

    def test_the_id_of_a_root_never_changes(self) -> None:
        """The id of a root never changes, so that folders of an older version are found again."""
        assert root_id("s3://bucket/prefix") == "9737a7d8f5fcd8b8"

    def test_a_memory_store_without_a_name_cannot_be_pickled(self) -> None:
        """A memory store without a name is private and cannot be pickled."""
        MemoryStore().put_if_absent("log/1", b"")
        assert MemoryStore().list("") == []
        with pytest.raises(TypeError):
            pickle.dumps(MemoryStore())
