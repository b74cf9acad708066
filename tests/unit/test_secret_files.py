"""Files with secrets: who else may read them, also where Kubernetes has mounted them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from qo.errors import ConfigError
from qo.store.secret_files import read_secret

pytestmark = pytest.mark.fast

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
FS_GROUP_MODE = 0o440  # What the kubelet adds to files of a read-only volume in a pod with an fsGroup.


def mount(directory: Path, mode: int) -> Path:
    """Lay a secret out as the kubelet does: the file is behind two links, so that all files change at once."""
    dated = directory / "..2026_11_17_10_00_00.1"
    dated.mkdir()
    (dated / "payload").write_bytes(b"k1:secret")
    (dated / "payload").chmod(mode)
    (directory / "..data").symlink_to(dated.name)
    (directory / "payload").symlink_to("..data/payload")
    return directory / "payload"


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640, 0o400 | FS_GROUP_MODE])
def test_a_secret_for_its_owner_and_group_is_read(tmp_path: Path, mode: int) -> None:
    assert read_secret(mount(tmp_path, mode)) == b"k1:secret"


@pytest.mark.parametrize("mode", [0o644, 0o444, 0o604, 0o660, 0o644 | FS_GROUP_MODE])
def test_a_secret_that_others_can_read_or_the_group_can_change_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match=r"open to other users: chmod 600 .*defaultMode: 0400"):
        read_secret(mount(tmp_path, mode))


def test_every_manifest_in_the_guides_mounts_secrets_as_qo_accepts_them(tmp_path: Path) -> None:
    mounted = [
        (volume["secret"], pod.get("securityContext", {}))
        for guide in GUIDES.glob("*.md")
        for block in re.findall(r"```yaml\n(.*?)```", guide.read_text(), re.DOTALL)
        if "kind: Deployment" in block
        for manifest in yaml.safe_load_all(block)
        if manifest["kind"] == "Deployment"
        for pod in [manifest["spec"]["template"]["spec"]]
        for volume in pod.get("volumes", [])
        if "secret" in volume
    ]
    assert mounted, "the guide shows how to mount a key file"
    for number, (secret, context) in enumerate(mounted):
        assert context["fsGroup"] == context["runAsGroup"], "else only root can read it"
        place = tmp_path / str(number)
        place.mkdir()
        assert read_secret(mount(place, secret["defaultMode"] | FS_GROUP_MODE))
