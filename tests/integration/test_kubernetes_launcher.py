"""Workers as Jobs of Kubernetes: manifests by the official schemas, and calls to a server that validates them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from qo.core.pipeline.scaling import WorkerState
from qo.errors import ConfigError
from qo.scaler.launchers.kubernetes_job import JobSettings, render_job
from qo.scaler.launchers.kubernetes_launcher import ApiServer, KubernetesLauncher, find_api_server
from qo.scaler.launchers.launcher import LaunchError, WorkerSpec
from support.scaling.kubernetes_api import TOKEN, Cluster, check_schema, serve

SPEC = WorkerSpec("quick", 4, 600.0, "registry.example/shop:3", "512Mi", 0.5)
SETTINGS = JobSettings("shop", "qo-worker", "qo-settings", "qo-secrets", 60.0)
GUIDE = Path(__file__).parents[2] / "docs/guides/scaling.md"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def url(cluster: Cluster) -> Iterator[str]:
    with serve(cluster) as url:
        yield url


@pytest.fixture
async def launcher(url: str, tmp_path: Path) -> AsyncIterator[KubernetesLauncher]:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    launcher = KubernetesLauncher(SPEC, SETTINGS, ApiServer(url, tmp_path / "token"))
    yield launcher
    await launcher.close()


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        (SPEC, SETTINGS),
        (WorkerSpec("python", 1, 0.0, "qo"), JobSettings()),
        (WorkerSpec("a1", 16, 86_400.0, "qo@sha256:0", "4000K", 8.0), JobSettings(secret="s")),
    ],
)
def test_a_manifest_is_valid_by_the_official_schemas(spec: WorkerSpec, settings: JobSettings) -> None:
    check_schema(render_job(spec, settings, 3))


def test_the_schemas_refuse_a_field_that_kubernetes_does_not_have() -> None:
    job = render_job(SPEC, SETTINGS, 1)
    with pytest.raises(kubernetes_validate.ValidationError):
        check_schema({**job, "spec": {**job["spec"], "grace": 1}})


def test_a_pod_has_the_time_to_finish_its_tasks_and_no_token_of_the_cluster() -> None:
    pod = render_job(SPEC, SETTINGS, 2)["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 660
    assert pod["automountServiceAccountToken"] is False
    [container] = pod["containers"]
    assert container["resources"] == {"requests": {"memory": "512Mi", "cpu": "0.5"}, "limits": {"memory": "512Mi"}}
    assert container["args"][:6] == ["worker", "run", "--runtime", "quick", "--concurrency", "4"]


async def test_a_worker_is_started_drained_and_gone(cluster: Cluster, launcher: KubernetesLauncher) -> None:
    assert await launcher.start(2)
    assert [(each.name, each.state) for each in await launcher.list()] == [("quick-2", WorkerState.STARTING)]
    cluster.settle("qo-quick-2", active=1, ready=1)
    [worker] = await launcher.list()
    assert (worker.place, worker.state) == (2, WorkerState.READY)
    await launcher.drain(worker)
    await launcher.drain(worker)
    assert [each.state for each in await launcher.list()] == [WorkerState.DRAINING]
    assert not await launcher.start(2)
    cluster.end_pods()
    assert await launcher.list() == []
    await launcher.drain(worker)


async def test_a_place_is_filled_once(cluster: Cluster, launcher: KubernetesLauncher) -> None:
    assert await launcher.start(1)
    assert not await launcher.start(1)
    assert len(cluster.jobs) == 1


async def test_a_job_that_failed_is_kept_until_its_place_is_filled(
    cluster: Cluster, launcher: KubernetesLauncher
) -> None:
    await launcher.start(1)
    cluster.fail("qo-quick-1", "BackoffLimitExceeded")
    [dead] = await launcher.list()
    assert (dead.state, dead.detail) == (WorkerState.DEAD, "BackoffLimitExceeded")
    assert await launcher.start(1)
    [fresh] = await launcher.list()
    assert fresh.state is WorkerState.STARTING
    assert fresh.uid != dead.uid
    await launcher.drain(dead)  # It has gone, and its successor stays.
    assert [each.state for each in await launcher.list()] == [WorkerState.STARTING]


async def test_a_worker_that_is_killed_leaves_neither_pods_nor_job(
    cluster: Cluster, launcher: KubernetesLauncher
) -> None:
    await launcher.start(1)
    [worker] = await launcher.list()
    await launcher.drain(worker)
    await launcher.kill(worker)
    assert cluster.killed == [f"batch.kubernetes.io/controller-uid={worker.uid}"]
    assert await launcher.list() == []


async def test_jobs_of_several_pages_are_listed_and_those_of_others_are_not(
    cluster: Cluster, launcher: KubernetesLauncher
) -> None:
    cluster.page = 2
    for place in (1, 2, 3, 4, 5):
        await launcher.start(place)
    cluster.create(render_job(WorkerSpec("slow", 1, 1.0, "qo"), SETTINGS, 1))
    assert sorted(each.place for each in await launcher.list()) == [1, 2, 3, 4, 5]


async def test_a_refusal_says_what_kubernetes_said(url: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("stolen")
    launcher = KubernetesLauncher(SPEC, SETTINGS, ApiServer(url, tmp_path / "token"))
    with pytest.raises(LaunchError, match=r"refused GET .*: 401 Unauthorized"):
        await launcher.list()
    await launcher.close()


async def test_a_cluster_that_does_not_answer_is_an_error_of_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    launcher = KubernetesLauncher(SPEC, SETTINGS, ApiServer("http://127.0.0.1:9", tmp_path / "token"))
    with pytest.raises(LaunchError, match="does not answer"):
        await launcher.list()
    await launcher.close()


def test_a_runtime_that_cannot_have_jobs_is_refused() -> None:
    server = ApiServer("http://127.0.0.1:9", Path("token"))
    with pytest.raises(ConfigError, match=r"\[runtimes.quick\]: Kubernetes needs an image"):
        KubernetesLauncher(WorkerSpec("quick", 1, 1.0), SETTINGS, server)
    with pytest.raises(ConfigError, match="have no underscores"):
        KubernetesLauncher(WorkerSpec("very_quick", 1, 1.0, "qo"), SETTINGS, server)


def test_the_api_server_is_that_of_the_cluster_or_of_the_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not run in a Kubernetes cluster"):
        find_api_server(None, None, None, {}, tmp_path)
    inside = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(ConfigError, match="no token of a service account"):
        find_api_server(None, None, None, inside, tmp_path)
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "ca.crt").write_text("")
    found = find_api_server(None, None, None, inside, tmp_path)
    assert found == ApiServer("https://[fd00::1]:6443", tmp_path / "token", tmp_path / "ca.crt")


def test_the_manifests_of_the_guide_are_valid_by_the_official_schemas() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    documents = [each for block in blocks for each in yaml.safe_load_all(block)]
    assert {each["kind"] for each in documents} >= {"Role", "RoleBinding", "ServiceAccount", "Deployment"}
    for each in documents:
        check_schema(each)


def test_the_role_of_the_guide_allows_exactly_what_the_launcher_calls() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    [role] = [each for block in blocks for each in yaml.safe_load_all(block) if each["kind"] == "Role"]
    rules = {(rule["apiGroups"][0], rule["resources"][0]): set(rule["verbs"]) for rule in role["rules"]}
    assert rules == {("batch", "jobs"): {"create", "get", "list", "delete"}, ("", "pods"): {"deletecollection"}}
