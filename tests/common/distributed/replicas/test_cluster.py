"""Tests multiworker's errors for a wrong TF_CONFIG, a missing process and a port in use."""

import _socket
import errno
import json
import math
import socket
import struct

import pytest

from common.config.schema import RunConfig
from common.distributed import listening, server_address
from common.distributed import replicas as backends
from common.distributed.replicas import cluster as clusters
from common.errors import UserError
from timetotrain.launch import plan


def tf_config(workers=("a:1", "b:2"), kind="worker", index=0, **changes):
    return json.dumps(
        {"cluster": {"worker": list(workers)}, "task": {"type": kind, "index": index}, **changes}
    )


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "TF_CONFIG is not set"),
        ("", "TF_CONFIG is not set"),
        ("{", "TF_CONFIG is not JSON"),
        ("[]", "field 'cluster' is missing"),
        ("{}", "field 'cluster' is missing"),
        (tf_config(cluster=3), "field 'cluster' is missing or no object"),
        (tf_config(task=None), "field 'task' is missing"),
        (tf_config(cluster={"worker": ["a:1"], "ps": ["b:1"]}), r"jobs \['ps', 'worker'\]"),
        (tf_config(workers=[]), "cluster.worker=.*host:port"),
        (tf_config(workers=["a"]), "cluster.worker=.*host:port"),
        (tf_config(workers=["a:70000"]), "cluster.worker=.*host:port"),
        (tf_config(workers=[3]), "cluster.worker=.*host:port"),
        (tf_config(workers=["a:1", "a:1"]), "an address twice"),
        (tf_config(kind="chief"), "task.type='chief' must be \"worker\""),
        (tf_config(index=2), "task.index=2 must be a whole number from 0 to 1"),
        (tf_config(index="0"), "task.index='0' must be"),
        (tf_config(index=True), "task.index=True must be"),
    ],
)
def test_a_wrong_environment_is_named_with_the_launcher(text, message):
    with pytest.raises(UserError, match=f"{message}.*timetotrain launch --replicas=multiworker"):
        clusters.from_environment(text)


def test_a_right_environment():
    assert clusters.from_environment(tf_config(index=1)) == clusters.Cluster(("a:1", "b:2"), 1)


def test_without_a_launcher_it_names_one(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(UserError, match="TF_CONFIG is not set; start it with `timetotrain launch"):
        backends.make(RunConfig(replicas="multiworker", num_replicas=2))


def test_a_process_that_does_not_come_up_is_named():
    mine, missing = (f"localhost:{port}" for port in plan.free_ports(2))
    with pytest.raises(UserError, match=rf"process 0 got no answer from process 1 \({missing}\).* 0.3 s"):
        clusters.rendezvous(clusters.Cluster((mine, missing), 0), seconds=0.3)


def test_a_taken_port_is_named():
    with socket.create_server(("", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=rf"cannot listen on port .*cluster.worker\[0\]={address}"):
            clusters.rendezvous(clusters.Cluster((address, "localhost:1"), 0), seconds=math.inf)


@pytest.mark.parametrize(
    "family, wildcard, address, bound",
    [
        (socket.AF_INET, "0.0.0.0", "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::", "127.0.0.1", "::ffff:127.0.0.1"),
        (socket.AF_INET6, "::", "fd00::7", "fd00::7"),
        (socket.AF_INET6, "::ffff:0.0.0.0", "10.1.2.3", "::ffff:10.1.2.3"),
        (socket.AF_INET, "0.0.0.0", "fd00::7", "127.0.0.1"),
        (socket.AF_INET, "10.1.2.3", "127.0.0.1", "10.1.2.3"),
    ],
)
def test_a_wildcard_becomes_the_process_s_address(family, wildcard, address, bound):
    def sockaddr(text):
        data = struct.pack("=HH", family, 80)
        packed = socket.inet_pton(family, text)
        return data + packed + bytes(8) if family == socket.AF_INET else data + bytes(4) + packed + bytes(4)

    assert server_address.sockaddr(sockaddr(wildcard), address) == sockaddr(bound)


@pytest.mark.skipif(not hasattr(_socket, "__file__"), reason="this Python has sockets built in, as Debian's")
def test_a_library_binds_to_the_address_and_sees_the_error_of_bind():
    with socket.socket() as first, socket.socket() as second:
        (port,) = plan.free_ports(1)
        with server_address.bound_to("127.0.0.1", port, [_socket.__file__]):
            first.bind(("0.0.0.0", port))
            first.listen()
            with pytest.raises(OSError) as caught:
                second.bind(("0.0.0.0", port))
        assert caught.value.errno == errno.EADDRINUSE
        assert first.getsockname()[0] == "127.0.0.1"
        assert [each.address for each in listening.listeners() if each.port == port] == ["127.0.0.1"]


@pytest.mark.parametrize("family, wildcard", [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")])
def test_a_server_that_listens_everywhere_is_refused(monkeypatch, family, wildcard):
    """As on a machine whose libraries cannot be changed."""

    def start():
        with server_address.bound_to("127.0.0.1", server.getsockname()[1], ["/no/library.so"]):
            server.listen()

    with socket.socket(family) as server:
        server.bind((wildcard, 0))
        with pytest.raises(
            UserError, match="^TensorFlow's server listens on every interface, not on 127.0.0.1 alone"
        ):
            start()
        monkeypatch.setenv(listening.ALLOWED, "1")
        start()


def test_a_public_address_needs_a_word(monkeypatch):
    monkeypatch.setattr(listening, "route", lambda host: "8.8.8.8")
    with pytest.raises(UserError, match="^a: its address 8.8.8.8 is public.*--allow_public"):
        listening.local_address(["a", "b"], 0)
    monkeypatch.setenv(listening.ALLOWED, "1")
    assert listening.local_address(["a", "b"], 0) == "8.8.8.8"


@pytest.mark.parametrize("comes", [False, True])
def test_a_name_without_an_address_is_waited_for_and_never_means_the_loopback(monkeypatch, comes):
    answers = iter(["", "", "10.0.0.7"] if comes else [])
    monkeypatch.setattr(listening, "route", lambda host: next(answers, ""))
    monkeypatch.setattr(listening, "NAME_SECONDS", 20.0 if comes else 0.0)
    monkeypatch.setattr(listening.time, "sleep", lambda seconds: None)
    if comes:
        assert listening.local_address(["a", "b"], 0) == "10.0.0.7"
        return
    with pytest.raises(UserError, match="^b: no such host, or no way to it, within 0 s; check") as caught:
        listening.local_address(["a", "b"], 0)
    assert caught.value.exit_code == 75


def test_a_host_whose_own_name_is_loopback_reaches_itself_by_its_address(monkeypatch):
    """Debian's installer writes `127.0.1.1 NAME` into /etc/hosts."""
    monkeypatch.setattr(listening, "_is_loopback", lambda host: host == "a")
    monkeypatch.setattr(listening, "route", lambda host: "10.0.0.7")
    assert listening.names_from_here(["a", "b", "a"], 0) == ["10.0.0.7", "b", "10.0.0.7"]
    assert listening.names_from_here(["a", "b"], 1) == ["a", "b"]
    assert listening.names_from_here(["a", "a"], 0) == ["a", "a"]
    # A name that only the other hosts know.
    monkeypatch.setattr(listening, "route", lambda host: "" if host == "b" else "10.0.0.8")
    assert listening.names_from_here(["c", "b"], 1) == ["c", "10.0.0.8"]


def test_localhost_needs_no_file_of_hosts(monkeypatch):
    """A root that debootstrap has just made has no /etc/hosts."""

    def unknown(host, *arguments, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(listening.socket, "gethostbyname", unknown)
    assert listening.local_address(["localhost"] * 2, 0) == "127.0.0.1"
    assert listening.names_from_here(["localhost"] * 2, 1) == ["127.0.0.1"] * 2


def test_a_host_that_neither_accepts_nor_refuses_a_connection_is_silent(monkeypatch):
    errors = {
        "gone": TimeoutError(),
        "cut": OSError(errno.EHOSTUNREACH, ""),
        "here": ConnectionRefusedError(),
    }

    def connect(address, seconds):
        if address[0] in errors:
            raise errors[address[0]]
        return socket.socket()

    monkeypatch.setattr(listening.socket, "create_connection", connect)
    assert listening.silent(["here", "gone", "there", "cut"], 29400) == ["gone", "cut"]
