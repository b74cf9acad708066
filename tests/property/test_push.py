"""Push chooses workers that can take a task, and believes only what was signed."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.push import Target, choose, is_reachable, sign, verify_body, verify_header

pytestmark = pytest.mark.fast

TOKEN = "a token of the tests"
names = st.text("abc", min_size=1, max_size=2)
targets = st.builds(
    Target,
    worker_id=names,
    address=st.just("127.0.0.1:1"),
    free=st.integers(0, 5),
    task_types=st.frozensets(st.sampled_from(["echo", "other"])),
    units=st.none() | st.frozensets(st.sampled_from("01")),
)


@given(targets=st.lists(targets, max_size=8), chance=st.floats(0, 1, exclude_max=True))
def test_the_chosen_worker_takes_the_task_and_has_room_if_any_has(targets: list[Target], chance: float) -> None:
    chosen = choose(targets, "echo", "0", chance)
    able = [each for each in targets if each.takes("echo", "0")]
    assert (chosen is None) == (not able)
    if chosen is not None:
        assert chosen in able
        assert chosen.free > 0 or all(each.free == 0 for each in able)


def test_workers_are_chosen_in_proportion_to_their_free_slots() -> None:
    made = [Target(str(free), "127.0.0.1:1", free, frozenset({"echo"}), None) for free in (0, 1, 3)]
    chosen = [choose(made, "echo", "0", n / 100) for n in range(100)]
    assert [sum(each is one for each in chosen) for one in made] == [0, 25, 75]


@given(body=st.binary(max_size=50), worker=names, others=st.lists(st.text(min_size=16, max_size=20), max_size=2))
def test_what_was_signed_is_believed_for_its_worker_and_its_body_alone(
    body: bytes, worker: str, others: list[str]
) -> None:
    header = sign(TOKEN, worker, body)
    digest = verify_header([*others, TOKEN], worker, header)
    assert digest is not None
    assert verify_body(digest, body)
    assert not verify_body(digest, body + b"x")
    assert verify_header([TOKEN], worker + "2", header) is None
    assert TOKEN in others or verify_header(others, worker, header) is None
    assert TOKEN not in header


@given(header=st.text(max_size=200))
def test_no_other_text_is_a_signature(header: str) -> None:
    assert verify_header([TOKEN], "w", header) is None


@pytest.mark.parametrize(
    ("address", "networks", "same_host", "reachable"),
    [
        ("127.0.0.1:80", ["127.0.0.0/8"], True, True),
        ("127.0.0.1:80", ["127.0.0.0/8"], False, False),
        ("[::1]:80", ["::1/128"], True, True),
        ("10.1.2.3:80", ["127.0.0.0/8"], False, False),
        ("10.1.2.3:80", ["127.0.0.0/8", "10.0.0.0/8"], False, True),
        ("169.254.169.254:80", ["10.0.0.0/8"], False, False),
        ("localhost:80", ["127.0.0.0/8"], True, False),
        ("evil.example:80", ["0.0.0.0/0"], False, False),
        ("10.1.2.3", ["10.0.0.0/8"], False, False),
        ("10.1.2.3:0", ["10.0.0.0/8"], False, False),
        ("10.1.2.3:99999", ["10.0.0.0/8"], False, False),
        ("10.1.2.3:80/../x", ["10.0.0.0/8"], False, False),
        ("user@10.1.2.3:80", ["10.0.0.0/8"], False, False),
        ("2130706433:80", ["127.0.0.0/8"], True, False),
        ("10.1.2.3:0000801234", ["10.0.0.0/8"], False, False),
        ("10.1.2.3:٨٠", ["10.0.0.0/8"], False, False),
        ("[fe80::1%eth0]:80", ["fe80::/10"], False, False),
        ("[fe80::1%\r\nX-Evil: 1\r\n]:80", ["fe80::/10"], False, False),
        ("10.1.2.3:80\r\nX-Evil: 1", ["10.0.0.0/8"], False, False),
        ("[fd00::1]:80", ["fd00::/8"], False, True),
    ],
)
def test_only_addresses_within_the_networks_are_ever_called(
    address: str, networks: list[str], same_host: bool, reachable: bool
) -> None:
    assert is_reachable(address, [ip_network(each) for each in networks], same_host=same_host) is reachable
