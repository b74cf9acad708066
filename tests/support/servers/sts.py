"""SeaweedFS with an STS and a role of tasks. It judges every request by the role and by the session policy."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from support.servers.s3 import S3Server, start_seaweed

ROLE = "arn:aws:iam::role/tasks"

# A role that may do everything: what is refused below, the session policy refuses.
IAM = {
    "sts": {
        "tokenDuration": "1h",
        "maxSessionLength": "12h",
        "issuer": "tests",
        "signingKey": "dGVzdCBrZXkgb2YgMzIgY2hhcmFjdGVycyBsb25n",
    },
    "policy": {"defaultEffect": "Deny", "storeType": "memory"},
    "roles": [
        {
            "roleName": "tasks",
            "roleArn": ROLE,
            "trustPolicy": {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]}],
            },
            "attachedPolicies": ["everything"],
        }
    ],
    "policies": [
        {
            "name": "everything",
            "document": {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}],
            },
        }
    ],
}


@pytest.fixture(scope="module")
def sts_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server with a role that the credentials of tasks are minted from."""
    directory = tmp_path_factory.mktemp("seaweed-sts")
    (directory / "iam.json").write_text(json.dumps(IAM))
    server = start_seaweed(directory, f"-s3.iam.config={directory / 'iam.json'}")
    yield server
    server.stop()
