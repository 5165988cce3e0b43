"""`python -m tandem.ray [--max-restarts N] [--wait-minutes M] train|sft ...`: a run of `tandem train ...` or `tandem sft
...` on a Ray cluster.

Ray only finds the machines and starts processes there: samples and weights go between these as in any other run, and
`tandem placement` says what is needed, so that no flag of a run is read here. One actor on each machine that trains,
and one for each engine, keeps a `tandem launch` and passes on its lines. Engines join the run, so one that is lost is
replaced while the run goes on; when a machine that trains is lost, all begin again from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tandem._program import EnvironmentFault, TandemError, environment, failure, program_path, show

try:
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    sys.exit(f"tandem: error: {error}: Ray is not installed for {sys.executable}: pip install 'ray[default]>=2.60'")

_EXIT_USER, _EXIT_ENVIRONMENT = 2, 3
# A run that a signal stopped ends with one of these.
_EXIT_STOPPED = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
_ERROR = "tandem: error: "
_SETTLE_S = 2.0  # in which the failure is seen that others only followed
_END_S = 20.0  # for those that a failure ends, and for engines when the run is over
_SAY_EVERY_S = 60.0
_LONGEST_PAUSE_S = 60.0  # between two starts of an engine
# Variables that tell a process of another launcher, or of Ray, which one it is. They are not passed on.
_OF_LAUNCHERS = ("RAY_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_")
_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _placement(words: list[str]) -> dict[str, Any]:
    result = subprocess.run([program_path(), "placement", *words], env=environment(), capture_output=True, text=True)
    if result.returncode != 0:
        *before, last = result.stderr.strip().splitlines() or [""]
        print(*before, sep="\n", end="\n" if before else "", file=sys.stderr)
        raise failure(result.returncode, last)
    if not result.stdout.startswith("{"):  # the answer to --help
        print(result.stdout, end="")
        sys.exit(0)
    return json.loads(result.stdout)


class _Host:
    """An actor: the processes of one bundle, on one machine. Its methods run in threads of one process."""

    def __init__(self, variables: dict[str, str], folder: str, resource: str):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_LAUNCHERS)}
        for name in (*_OF_RANKS, "OMP_NUM_THREADS"):  # the last one is set by Ray; the driver's own is passed on
            kept.pop(name, None)
        self._variables = {**variables, **kept}
        self._resource = resource
        self._process: subprocess.Popen[bytes] | None = None
        self._is_asked_to_stop = False
        if os.path.isdir(folder):
            os.chdir(folder)

    def place(self) -> tuple[str, str, list[str]]:
        """Node, address, and the numbers of the devices that are this actor's."""
        context = ray.get_runtime_context()
        devices = context.get_accelerator_ids().get(self._resource, [])
        return context.get_node_id(), ray.util.get_node_ip_address(), devices

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind(("", 0))
            return probe.getsockname()[1]

    def saved(self, words: list[str]) -> str | None:
        """What --save holds; None where the words are wrong on this machine, which the run itself says."""
        try:
            return _placement(words)["saved"]
        except TandemError:
            return None

    def words_of_restart(self, words: list[str], saved_before: str) -> list[str]:
        return _placement(["--restart", "--saved-before", saved_before, *words])["train"]

    def run(self, words: list[str], secret: str, variables: dict[str, str]) -> Iterator[str | int]:
        """The lines of `tandem WORDS`, and its exit code at last."""
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as cleanup:
            path = os.path.join(folder, "secret")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(secret)
            process = self._process = subprocess.Popen(
                [program_path(), *words],
                env={**environment(self._variables), **variables, "TANDEM_SECRET_FILE": path},
                stdin=subprocess.PIPE,  # the program ends when this closes, so no process outlives the actor
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            assert process.stdin is not None and process.stdout is not None
            cleanup.callback(process.stdin.close)
            if self._is_asked_to_stop:
                process.terminate()
            for line in process.stdout:
                yield line.decode("utf-8", "replace").rstrip("\r\n")
            yield process.wait()

    def stop(self) -> None:
        self._is_asked_to_stop = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()


class _Member:
    """An actor as the driver sees it: what it prints is printed, and its end is an event."""

    def __init__(self, name: str, actor: Any, events: queue.Queue[_Member]):
        self.name, self.actor, self._events = name, actor, events
        self.code: int | None = None
        self._errors: list[str] = []  # what was said last, the reason before the consequence

    def start(self, words: list[str], secret: str, variables: dict[str, str]) -> None:
        lines = self.actor.run.options(num_returns="streaming").remote(words, secret, variables)
        threading.Thread(target=self._follow, args=(lines,), daemon=True).start()

    def _follow(self, lines: Any) -> None:
        code = _EXIT_ENVIRONMENT
        try:
            for line in map(ray.get, lines):
                if isinstance(line, int):
                    code = line
                else:
                    if _ERROR in line:
                        self._errors = [*self._errors[-1:], line.split(_ERROR, 1)[1]]
                    show(f"[{self.name}] {line}\n", sys.stdout)
        except ray.exceptions.RayError as error:
            self._errors = [f"its actor is gone ({type(error).__name__})"]
        finally:  # whatever ends this thread: the attempt waits for it
            self.code = code
            self._events.put(self)

    def end(self) -> str:
        return f"{self.name} ended with code {self.code}: {'; '.join(self._errors)}"


class _Attempt:
    """The run from a start to its end, or to a failure after which it may be started again. `saved_before` is what --save
    held before the first start of a run, None until then."""

    def __init__(self, spec: dict[str, Any], words: list[str], saved_before: str | None, is_stopped: Callable[[], bool]):
        self._spec, self._words, self.saved_before, self._is_stopped = spec, words, saved_before, is_stopped
        self._secret = secrets.token_hex(32)
        self._events: queue.Queue[_Member] = queue.Queue()
        self._engines: dict[int, _Member] = {}
        self._starts: dict[int, int] = {}  # how often each engine was started again
        self._due: list[tuple[float, int]] = []  # when which engine is to be started again
        self._places: dict[str, list[list[str]]] = {}  # devices of the actors on each node
        self._is_over = False

    def run(self) -> tuple[int, str]:
        """Exit code and last words: of the process that failed first, if one did."""
        hosts, engines = self._spec["hosts"], self._spec["engines"]
        sizes = [self._spec["devices_per_host"]] * hosts + [self._spec["devices_per_engine"]] * engines
        self._group = placement_group([{self._spec["resource"]: size} for size in sizes], strategy="PACK")
        try:
            if not _wait_for(self._group, self._spec, sizes, self._is_stopped):
                return 128 + signal.SIGTERM, "stopped before it had its devices"
            return self._train()
        except ray.exceptions.RayError as error:
            return _EXIT_ENVIRONMENT, f"a machine was lost before the run began ({type(error).__name__})"
        finally:
            self._is_over = True
            remove_placement_group(self._group)  # its actors end with it

    def _actor(self, bundle: int, size: int) -> Any:
        resource = self._spec["resource"]
        of = {"CPU": {"num_cpus": size}, "GPU": {"num_cpus": 0, "num_gpus": size}}
        options = of.get(resource, {"num_cpus": 0, "resources": {resource: size}})
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        actor = ray.remote(_Host).options(max_restarts=0, max_concurrency=4, scheduling_strategy=strategy, **options)
        variables = {name: value for name, value in os.environ.items()
                     if not name.startswith(_OF_LAUNCHERS) and name not in _OF_RANKS}  # fmt: skip
        return actor.remote(variables, os.getcwd(), resource)

    def _visible(self, node: str, devices: list[str]) -> dict[str, str]:
        """An actor sees its own devices first, and then the run's others on its machine, whose memory it may map."""
        variable = self._spec["visible_devices"]
        others = [number for of_actor in self._places.get(node, []) for number in of_actor if number not in devices]
        return {variable: ",".join([*devices, *dict.fromkeys(others)])} if variable else {}

    def _train(self) -> tuple[int, str]:
        hosts = self._spec["hosts"]
        actors = [self._actor(bundle, self._spec["devices_per_host"]) for bundle in range(hosts)]
        engine_actors = [self._actor(hosts + i, self._spec["devices_per_engine"]) for i in range(self._spec["engines"])]
        places = ray.get([actor.place.remote() for actor in [*actors, *engine_actors]])
        for node, _, devices in places:
            self._places.setdefault(node, []).append(devices)
        if self.saved_before is None:
            words = self._spec["train"]
            self.saved_before = ray.get(actors[0].saved.remote(self._words))
        else:
            words = ray.get(actors[0].words_of_restart.remote(self._words, self.saved_before))
        self._master = places[0][1]
        ports = ray.get([actors[0].free_port.remote() for _ in range(2)])
        self._door = f"{self._master}:{ports[1]}"
        trainers = []
        for i, (actor, (node, address, devices)) in enumerate(zip(actors, places)):
            member = _Member(f"host {i} {address}", actor, self._events)
            launch = ["launch", "--nnodes", str(hosts), "--node-rank", str(i), "--nproc-per-node",
                      str(self._spec["devices_per_host"]), "--end-with-stdin"]  # fmt: skip
            launch += ["--master-addr", self._master, "--master-port", str(ports[0])] if hosts > 1 else []
            listen = ["--rollout-listen", str(ports[1])] if engine_actors else []
            listen += ["--network-interface", address] if engine_actors or hosts > 1 else []
            member.start([*launch, "--", self._spec["verb"], *words, *listen], self._secret, self._visible(node, devices))
            trainers.append(member)
        for i, (actor, (node, address, devices)) in enumerate(zip(engine_actors, places[hosts:])):
            self._start_engine(i, actor, node, address, devices)
        return self._watch(trainers)

    def _start_engine(self, i: int, actor: Any, node: str, address: str, devices: list[str]) -> None:
        member = _Member(f"engine {i} {address}", actor, self._events)
        launch = ["launch", "--nproc-per-node", str(self._spec["devices_per_engine"]), "--end-with-stdin"]
        words = [*launch, "--", self._spec["verb"], *self._spec["join"], "--rollout-join-address", self._door]
        member.start(words, self._secret, self._visible(node, devices))
        self._engines[i] = member

    def _replace_engine(self, i: int) -> None:
        """Waits in a thread: the machine of the bundle may be gone, and Ray then looks for another one."""
        ray.kill(self._engines[i].actor)  # it may live without its process, and has the devices

        def start() -> None:
            try:
                actor = self._actor(self._spec["hosts"] + i, self._spec["devices_per_engine"])
                node, address, devices = ray.get(actor.place.remote())
                self._start_engine(i, actor, node, address, devices)
            except ray.exceptions.RayError as error:
                if self._is_over:
                    return
                show(f"tandem.ray: warning: engine {i} has no machine ({type(error).__name__}); the run continues, and it "
                     f"is tried again in {_LONGEST_PAUSE_S:g} s\n", sys.stderr)  # fmt: skip
                self._due.append((time.monotonic() + _LONGEST_PAUSE_S, i))
        threading.Thread(target=start, daemon=True).start()

    def _watch(self, trainers: list[_Member]) -> tuple[int, str]:
        failed: list[_Member] = []
        deadline: float | None = None  # when those that are left are killed
        settled: float | None = None  # when it is known who failed first
        is_told = False
        while any(member.code is None for member in trainers):
            with contextlib.suppress(queue.Empty):
                member = self._events.get(timeout=0.2)
                if member in trainers:
                    if member.code != 0:
                        failed.append(member)
                        settled = settled or time.monotonic() + _SETTLE_S
                elif not failed and not self._is_stopped():
                    self._engine_ended(member)
            now = time.monotonic()
            for due in [due for due in self._due if due[0] <= now and not failed]:
                self._due.remove(due)
                self._replace_engine(due[1])
            if not self._is_stopped() and settled and now >= settled:
                deadline = deadline or now + _END_S  # without one, they save for as long as it takes
            if (self._is_stopped() or deadline) and not is_told:
                is_told = True
                for member in [*trainers, *self._engines.values()]:
                    member.actor.stop.remote()
            if deadline and now >= deadline:
                for member in trainers:
                    ray.kill(member.actor)
        if not failed:
            end = time.monotonic() + _END_S
            while any(member.code is None for member in self._engines.values()) and time.monotonic() < end:
                time.sleep(0.1)  # each hears from the run that it is over
            return 0, ""
        # A process that has lost another one ends with 3: who ended otherwise was first.
        first = next((member for member in failed if member.code != _EXIT_ENVIRONMENT), failed[0])
        return first.code or 0, first.end()

    def _engine_ended(self, member: _Member) -> None:
        i = next(i for i, engine in self._engines.items() if engine is member)
        if member.code in (0, _EXIT_USER):  # the run is over, or every other one would be refused too
            if member.code:
                show(f"tandem.ray: warning: {member.end()}; it is not replaced\n", sys.stderr)
            return
        starts = self._starts[i] = self._starts.get(i, 0) + 1
        pause = min(2.0 ** (starts - 1), _LONGEST_PAUSE_S)
        show(f"tandem.ray: warning: {member.end()}; the run continues, and another one joins it (start {starts + 1} of "
             f"engine {i}, in {pause:g} s)\n", sys.stderr)  # fmt: skip
        self._due.append((time.monotonic() + pause, i))


def _lacking(resource: str, sizes: list[int]) -> str:
    """What the machines of the cluster lack if nobody else uses them; "" if they have it all."""
    free = sorted(int(node["Resources"].get(resource, 0)) for node in ray.nodes() if node["Alive"])
    had = list(free)
    for size in sorted(sizes, reverse=True):
        at = next((i for i, devices in enumerate(free) if devices >= size), None)
        if at is None:
            shares = f"{sum(sizes)} {resource} in shares of {sizes}, each on one machine"
            return f"{shares}; the cluster's machines have {had}"
        free[at] -= size
        free.sort()
    return ""


def _wait_for(group: PlacementGroup, spec: dict[str, Any], sizes: list[int], is_stopped: Callable[[], bool]) -> bool:
    begin = time.monotonic()
    said = -_SAY_EVERY_S
    while not group.wait(timeout_seconds=1):
        if is_stopped():
            return False
        now = time.monotonic()
        lacking = _lacking(spec["resource"], sizes)
        if lacking and now - begin > 60.0 * spec["wait_minutes"]:
            raise EnvironmentFault(f"the run needs {lacking} (waited for --wait-minutes {spec['wait_minutes']:g})",
                                   _EXIT_ENVIRONMENT)  # fmt: skip
        if now - said >= _SAY_EVERY_S:
            said = now
            what = lacking or f"{sum(sizes)} {spec['resource']} in shares of {sizes}, which others use now"
            show(f"tandem.ray: waiting for {what}\n", sys.stderr)
    return True


def run(words: list[str]) -> int:
    """Runs `tandem.ray WORDS` on the cluster that RAY_ADDRESS or this machine's Ray names. Returns the exit code."""
    spec = _placement(words)
    try:
        # The actors' lines come through us: Ray would fold those that are alike.
        ray.init(address="auto", log_to_driver=False, logging_level="warning")
    except ConnectionError as error:
        raise EnvironmentFault(f"no Ray cluster is to be found ({error}): start one with `ray start --head`, or set "
                               "RAY_ADDRESS", _EXIT_ENVIRONMENT) from None  # fmt: skip
    stopped = threading.Event()

    def stop(number: int, _: object) -> None:
        if stopped.is_set():  # a second signal ends us at once; what was told to stop still saves
            os._exit(128 + number)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):  # after ray.init(), which sets its own
        signal.signal(number, stop)
    most = spec["max_restarts"]
    saved_before = None
    for restarts in itertools.count():
        attempt = _Attempt(spec, words, saved_before, stopped.is_set)
        code, end = attempt.run()
        saved_before = attempt.saved_before
        if code == 0 or stopped.is_set():
            return code
        if code in (_EXIT_USER, *_EXIT_STOPPED) or restarts == most:
            raise failure(code, end)
        show(f"tandem.ray: warning: {end}; restart {restarts + 1} of {most}\n", sys.stderr)
    raise AssertionError("counting has no end")


def main() -> None:
    try:
        sys.exit(run(sys.argv[1:]))
    except TandemError as error:
        print(f"tandem: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
