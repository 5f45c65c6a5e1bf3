"""Network namespaces of ranks on one machine, joined by links of a given rate, and measurements of these links.

Two namespaces are joined by a veth pair, more of them by a bridge. `tc` limits each direction of each link.
"""
import concurrent.futures
import contextlib
import ctypes
import json
import os
import pathlib
import shlex
import signal
import socket
import statistics
import subprocess
import time

UNLIMITED = 0           # the rate of a link without a limit
BURST_S = 250e-6        # a link that was idle sends so much at once
MIN_BURST_BYTES, MAX_PACKET_BYTES = 16 << 10, 64 << 10
PROBE_S, NUM_PINGS = 1.0, 300
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CLONE_NEWNET = 0x40000000


class CommandFailed(Exception):
    pass


def command(*arguments):
    """Returns the standard output of a command that must succeed."""
    done = subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CommandFailed(f"{shlex.join(done.args)}: {' '.join(done.stderr.split())}")
    return done.stdout


@contextlib.contextmanager
def signals_ignored():
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Network:
    """The namespaces of all ranks and the links between them."""

    SUBNET = "10.77.0.0/24"
    DEVICE = "link0"

    def __init__(self, num_ranks):
        self.prefix = f"ranks{os.getpid()}-"
        self.ranks = [f"{self.prefix}{rank}" for rank in range(num_ranks)]
        self.hub = f"{self.prefix}hub"
        self.made = []
        self.ends = [(name, self.DEVICE) for name in self.ranks]    # (namespace, device) whose sending is limited

    def build(self):
        for name in [*self.ranks, self.hub] if len(self.ranks) > 2 else self.ranks:
            self.made.append(name)
            command("ip", "netns", "add", name)
            command("ip", "-n", name, "link", "set", "lo", "up")
        if len(self.ranks) == 2:
            command("ip", "link", "add", self.DEVICE, "netns", self.ranks[0], "type", "veth",
                    "peer", "name", self.DEVICE, "netns", self.ranks[1])
        else:
            command("ip", "-n", self.hub, "link", "add", "bridge0", "type", "bridge")
            command("ip", "-n", self.hub, "link", "set", "bridge0", "up")
            for rank, name in enumerate(self.ranks):
                port = f"port{rank}"
                command("ip", "link", "add", self.DEVICE, "netns", name, "type", "veth",
                        "peer", "name", port, "netns", self.hub)
                command("ip", "-n", self.hub, "link", "set", port, "master", "bridge0", "up")
                self.ends.append((self.hub, port))
        for rank, name in enumerate(self.ranks):
            command("ip", "-n", name, "address", "add", f"{self.address(rank)}/24", "dev", self.DEVICE)
            command("ip", "-n", name, "link", "set", self.DEVICE, "up")

    def remove(self):
        """Ends what runs in the namespaces, and removes them. Links and their limits go with them."""
        with signals_ignored():
            for name in self.made:
                found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
                for pid in map(int, found.split()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            for name in self.made:
                subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
            self.made = []

    @staticmethod
    def address(rank):
        return f"10.77.0.{rank + 1}"

    def limit(self, gbits):
        """Limits each direction of each link to so many Gbit/s. Small packets keep bursts short on slow links."""
        bytes_per_s = gbits * 1e9 / 8
        burst = max(MIN_BURST_BYTES, int(bytes_per_s * BURST_S))
        packet = MAX_PACKET_BYTES if gbits == UNLIMITED else min(MAX_PACKET_BYTES, burst // 2)
        for name, device in self.ends:
            command("ip", "-n", name, "link", "set", device, "gso_max_size", packet)
            if gbits != UNLIMITED:
                command("tc", "-n", name, "qdisc", "replace", "dev", device, "root", "tbf",
                        "rate", f"{int(gbits * 1e9)}bit", "burst", burst, "latency", "50ms")
            elif "tbf" in command("tc", "-n", name, "qdisc", "show", "dev", device):
                command("tc", "-n", name, "qdisc", "delete", "dev", device, "root")

    def sent_bytes(self):
        """Returns the bytes that each rank has sent, with all headers."""
        shown = [json.loads(command("ip", "-n", name, "-s", "-j", "link", "show", self.DEVICE)) for name in self.ranks]
        return [link[0]["stats64"]["tx"]["bytes"] for link in shown]

    def cpu_s(self):
        """Returns the seconds that each process in the namespaces has computed, by its pid."""
        own = {os.stat(f"/run/netns/{name}").st_ino for name in self.ranks}
        seconds = {}
        for folder in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and (folder / "ns/net").stat().st_ino in own:
                    fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                    seconds[int(folder.name)] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        return seconds

    def socket(self, rank):
        """Returns a TCP socket in a rank's namespace. It stays there, whichever thread uses it."""
        def make():
            with open(f"/run/netns/{self.ranks[rank]}", "rb") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
                    raise CommandFailed(f"setns: {os.strerror(ctypes.get_errno())}")
            made = socket.socket()
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made

        # The thread changes its namespace, and ends.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(make).result()

    def connect(self, sender, receiver):
        """Returns the two ends of a connection."""
        with self.socket(receiver) as listener:
            listener.bind((self.address(receiver), 0))
            listener.listen()
            near = self.socket(sender)
            near.connect(listener.getsockname())
            far, _ = listener.accept()
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return near, far


def transfer_rates(network, *pairs):
    """Returns the rates in Gbit/s of transfers at the same time, one for each (sender, receiver)."""
    def send(near):
        piece, end = bytes(256 << 10), time.monotonic() + PROBE_S
        with near:
            while time.monotonic() < end:
                near.sendall(piece)

    def receive(far):
        room, count = bytearray(1 << 20), 0
        with far:
            far.recv_into(room)
            start = last = time.monotonic()
            while size := far.recv_into(room):
                count, last = count + size, time.monotonic()
        return count * 8e-9 / (last - start)

    ends = [network.connect(*pair) for pair in pairs]
    with concurrent.futures.ThreadPoolExecutor(2 * len(ends)) as pool:
        received = [pool.submit(receive, far) for _, far in ends]
        for sent in [pool.submit(send, near) for near, _ in ends]:
            sent.result()
        return [rate.result() for rate in received]


def round_trip_us(network):
    """Returns the median microseconds of a byte from rank 0 to rank 1 and back."""
    near, far = network.connect(0, 1)

    def echo():
        with far:
            while byte := far.recv(1):
                far.sendall(byte)

    with concurrent.futures.ThreadPoolExecutor(1) as pool, near:
        pool.submit(echo)
        times = []
        for _ in range(NUM_PINGS):
            start = time.monotonic()
            near.sendall(b"x")
            near.recv(1)
            times.append(time.monotonic() - start)
        near.shutdown(socket.SHUT_WR)
    return statistics.median(times) * 1e6


def link_name(gbits):
    return "no limit" if gbits == UNLIMITED else f"{gbits:g} Gbit/s"


def measure_links(network, links):
    """Prints what the links transfer. A link that is faster than its limit ends the benchmark."""
    print("| link | measured Gbit/s, rank 0 to 1 | rank 1 to 0 | both at once | round trip of a byte, us |\n"
          "| --- | --- | --- | --- | --- |")
    for gbits in links:
        network.limit(gbits)
        there, back = transfer_rates(network, (0, 1))[0], transfer_rates(network, (1, 0))[0]
        both = transfer_rates(network, (0, 1), (1, 0))
        print(f"| {link_name(gbits)} | {there:.2f} | {back:.2f} | {both[0]:.2f} and {both[1]:.2f} | "
              f"{round_trip_us(network):.0f} |", flush=True)
        if gbits != UNLIMITED and max(there, back, *both) > 1.05 * gbits:
            raise SystemExit(f"the link of {gbits:g} Gbit/s transfers {max(there, back, *both):.2f}: it is not limited")
