"""The commands of two pages in docs/deploy run as printed, on workers whose Python has only what the pages require."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.demo.jars import spark_home
from apps.demo.servers import KafkaBroker, S3Server, StandaloneCluster, WorkerSize
from tests.kit.deployments import (
    BOTO3,
    EXACT,
    REQUIRED,
    Deployment,
    checkout_copy,
    install_locked,
    printed,
    run_printed,
)
from tests.kit.folders import CHECKOUT
from tests.kit.servers.bare_python import bare_python, clean_environment
from tests.kit.servers.yarn import Yarn

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PAGE = "standalone.md"
WORKERS_HAVE = ("pyspark", "py4j", "pyarrow", "numpy", "xxhash")
MODULES = "riffle_spark.worker.slot boto3 pyarrow"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Two workers without the checkout on their Python path."""
    folder = tmp_path_factory.mktemp("cluster")
    with StandaloneCluster(folder, 2, WorkerSize(cores=1), [{"PYTHONPATH": ""}]) as cluster:
        yield cluster


@pytest.fixture
def deployment(
    tmp_path: Path, kafka_broker: KafkaBroker, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Deployment:  # fmt: skip
    """A copy of the checkout, from which the commands run."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return Deployment(checkout_copy(tmp_path / "checkout"), kafka_broker, s3_server, request.node.originalname)


def test_a_zip_file_for_workers_with_four_packages(cluster: StandaloneCluster, deployment: Deployment) -> None:
    """Workers with pyspark, pyarrow, numpy and xxhash import the rest from the zip file and the archive of packages."""
    folder = deployment.folder
    workers = bare_python(folder / "workers", WORKERS_HAVE)
    install_locked(Path(sys.executable), BOTO3, folder, "--target", str(folder / "packages"))
    packages = printed(PAGE, "tar -czf packages.tar.gz").splitlines()
    assert packages[0] == "python -m pip install 'boto3>=1.35.69' --target packages"
    run_printed(packages[1], folder)
    archive = {"spark.archives": f"{folder}/packages.tar.gz#packages", "spark.executorEnv.PYTHONPATH": "packages"}
    command = printed(PAGE, "--py-files riffle_spark.zip")
    replaced = {"python -m zipfile": f"{sys.executable} -m zipfile", "spark://master:7077": cluster.url}
    pythons = {"PYSPARK_PYTHON": str(workers), "PYSPARK_DRIVER_PYTHON": sys.executable}
    deployment.submit(command, replaced, archive, **pythons)
    assert deployment.difference_of_output() == EXACT
    assert deployment.difference_of_state() == EXACT
    imported = deployment.imports(command, MODULES, replaced, archive, **pythons)
    assert "'./riffle_spark.zip/riffle_spark/worker/slot.py'" in imported, imported
    assert re.search(r"/work/app-\S+/packages/boto3/__init__\.py", imported), imported
    assert f"{folder}/workers/lib/" in imported


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the environment and its archive by the printed commands, with pinned packages. Return their folder."""
    folder = checkout_copy(tmp_path_factory.mktemp("environment"))
    make, install, pack = printed(PAGE, "venv-pack -p environment").splitlines()
    run_printed(make, folder, Path(sys.executable).parent)
    python = folder / "environment" / "bin" / "python"
    assert install == "environment/bin/pip install . 'pandas>=2.2,<3' venv-pack"
    install_locked(python, REQUIRED, folder)
    pip = [str(python), "-m", "pip", "install", "-q", "--no-deps"]
    locked = ["--require-hashes", "-r", str(CHECKOUT / "requirements" / "pack.txt")]
    for arguments in (locked, ["."]):
        subprocess.run([*pip, *arguments], cwd=folder, check=True, timeout=300, env=clean_environment())
    run_printed(pack, folder)
    return folder


def bring(environment: Path, deployment: Deployment) -> None:
    """Link the environment and its archive into the folder where the commands run."""
    for name in ("environment", "environment.tar.gz"):
        (deployment.folder / name).symlink_to(environment / name)


def test_an_environment_for_workers_with_only_python(
    cluster: StandaloneCluster, deployment: Deployment, environment: Path
) -> None:
    """Workers that have only Python run in the environment that Spark distributes as an archive."""
    bring(environment, deployment)
    command, replaced = printed(PAGE, "--archives environment.tar.gz#environment"), {"spark://master:7077": cluster.url}
    deployment.submit(command, replaced, {})
    assert deployment.difference_of_output() == EXACT
    assert deployment.difference_of_state() == EXACT
    imported = deployment.imports(command, MODULES, replaced, {})
    assert len(re.findall(r"/work/app-[^']+/environment/lib/python3[^']+", imported)) == 2 * 3, imported


def test_yarn_containers_run_in_the_distributed_environment(
    deployment: Deployment, environment: Path, tmp_path: Path
) -> None:
    """On YARN the containers of the driver and the executors run in the environment that Spark distributes as an
    archive.
    """
    bring(environment, deployment)
    assert "venv-pack -p environment" in printed("yarn.md", "venv-pack")
    local = {
        "spark.yarn.jars": f"local:{spark_home()}/jars/*",
        "spark.yarn.stagingDir": f"file://{tmp_path}/staging",
        **{f"spark.yarn.appMasterEnv.{name}": value for name, value in deployment.store.environment.items()},
    }
    with Yarn(tmp_path / "yarn") as yarn:
        try:
            deployment.submit(printed("yarn.md", "--master yarn"), {}, local, **yarn.environment)
        finally:
            logs = yarn.container_logs()
    assert deployment.difference_of_output() == EXACT, logs
    assert deployment.difference_of_state() == EXACT
