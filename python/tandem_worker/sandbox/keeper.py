"""The processes around workers: those that keep them apart and end them, and the forks of a warm parent.

    program -> guard -> keeper -+-> worker: a tokenizer, a sink, or the warm parent of graders
                                +-> first process of a room     (a grader joins it: a fork of the warm parent)
                                +-> ...

The guard is what the program starts. It prepares the sandbox, waits, and ends as the worker ends. The keeper is the first
process of a room of its own. It opens rooms for graders when the program asks, ends when its line to the program closes,
and takes everything with it. Guard, keeper and first processes run none of the user's code. The namespaces of a grader's
room belong to the user that the warm parent runs as, so forks of that may join them although it has no capability itself.
Behind each grader stands a witness, which tells the program how the grader has ended.

Where there are no process namespaces, guard and keeper are one; where there are no namespaces for each grader, the
witness is what looks after it.
"""

import itertools
import os
import resource
import signal
import socket
import sys

from tandem_worker.sandbox import clearing, kernel, processes, room, sandbox

CHANNEL_FD = 3
CONFINED = "confined"  # says to a worker that starts anew that its layers are there
FIRST_ROOM = "0"
NUM_LINES = 4  # that come with "fork": a worker's output, its errors, its channel, and where its end is reported


def close_all_but(kept):
    """Closes all descriptors but 0, 1, 2 and those in `kept`."""
    low = 3
    for descriptor in sorted(kept):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, max(low, resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096))


def start(control, wanted, forks):
    """Confines this process as `wanted` says (sandbox.Confinement) and makes a worker of it, in which alone this
    returns. `control` is the keeper's line to the program: a socket's descriptor, closed in the worker."""
    confinement = sandbox.Confinement(**wanted, forks=forks)
    confinement.prepare()
    kernel.become_subreaper()
    if forks and confinement.namespaces:
        try_a_room(confinement)
    if not confinement.rooms:
        confinement.do_without_group()
    report = None
    try:
        if confinement.namespaces:
            report = enter_first_room(confinement, control)
            confinement.furnish(confinement.processes_of_all_rooms())
            try_the_group(confinement)
    except kernel.Refused as error:
        confinement.note_no_process_namespace(error)
        confinement.do_without_group()
    worker = os.fork()
    if worker == 0:
        os.close(control)
        if report is not None:
            os.close(report)
        elif confinement.namespaces:
            confinement.furnish_without_room()
        confinement.enter_sandbox()
        return confinement
    os.close(CHANNEL_FD)
    kernel.become_undumpable()
    status = keep(control, confinement, worker)
    if report is not None:
        if status is not None:
            processes.send_status(report, status)
        room.end_room()
        os._exit(0)
    processes.end_descendants()
    end(confinement, status)


def try_a_room(confinement):
    """Whether the kernel gives namespaces below namespaces is found out before a run relies on them."""
    reports, report = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            confinement.enter_nested_namespaces()
        except (kernel.Refused, OSError) as error:
            os.write(report, str(error).encode())
        os._exit(0)
    os.close(report)
    reason = os.read(reports, 4096).decode()
    os.close(reports)
    os.waitpid(child, 0)
    confinement.rooms = not reason
    if reason:
        confinement.note_no_rooms(reason)


def enter_first_room(confinement, control):
    """Returns in the first process of a room: a descriptor that wants the status of its worker's end. The process that
    was called waits for that, and ends in the same way. Refused: nothing has changed."""
    refusals, refusal = os.pipe2(os.O_CLOEXEC)
    reports, report = os.pipe2(os.O_CLOEXEC)
    passing = os.fork()
    if passing == 0:
        try:
            kernel.unshare(room.ROOM_NAMESPACES)
        except kernel.Refused as error:
            os.write(refusal, str(error).encode())
            os._exit(1)
        if os.fork() != 0:
            os._exit(0)
        try:
            room.mount_own_proc()
        except kernel.Refused as error:
            os.write(refusal, str(error).encode())
            os._exit(1)
        for descriptor in (refusals, refusal, reports):
            os.close(descriptor)
        return report
    os.close(refusal)
    os.close(report)
    reason = os.read(refusals, 4096).decode()
    os.close(refusals)
    os.waitpid(passing, 0)
    if reason:
        os.close(reports)
        raise kernel.Refused(reason)
    os.close(control)
    os.close(CHANNEL_FD)
    kernel.become_undumpable()
    status = processes.received_status(reports)
    processes.wait_for_all()
    end(confinement, status)


def end(confinement, status):
    """Ends the process that the program has started, once all others are gone."""
    if confinement.group is not None:
        confinement.group.remove()
    confinement.remove_folder()
    processes.exit_like(signal.SIGKILL if status is None else status)


def try_the_group(confinement):
    """The warm parent's room is the first to be counted; where that fails, what would be counted is denied."""
    try:
        admit_to_group(confinement, FIRST_ROOM)
    except OSError:
        confinement.do_without_group()


def admit_to_group(confinement, name):
    if confinement.group is not None:
        confinement.group.make_room(name, confinement.memory_of_room(), os.getpid())


def keep(control, confinement, worker):
    """Opens rooms, until the program hangs up (None) or the worker ends (its wait status)."""
    line = socket.socket(fileno=control)
    loop = processes.Loop()
    loop.watch(line.fileno())
    for number in itertools.count(1):
        descriptors = []
        while not descriptors:
            ready, ended = loop.wait()
            for process, status in ended:
                if process == worker:
                    return status
            if ready and not processes.receive(line, 1, descriptors):
                return None
        open_room(confinement, loop, descriptors[0], str(number))


def open_room(confinement, loop, line, name):
    """A room for a grader to join. Its first process answers on `line`: one byte with the namespaces' descriptors, or a
    line that says why there is no room."""
    if os.fork() != 0:
        os.close(line)
        if confinement.group is not None:
            confinement.group.remove_empty_rooms()
        return
    try:
        loop.leave()
        confinement.enter_nested_namespaces()
        if os.fork() != 0:
            os._exit(0)
        room.mount_own_proc()
        confinement.missing.clear()
        confinement.furnish(confinement.limits["processes"])
        if confinement.missing:
            raise kernel.Refused(", ".join(confinement.missing))
        group = confinement.group
        admit_to_group(confinement, name)  # so that it is not taken for one that has been left
        namespaces = room.open_namespaces()
        answers = socket.socket(fileno=line)  # keeps the descriptor open
        socket.send_fds(answers, [b"y"], namespaces)
        close_all_but({line} | (group.descriptors() if group is not None else set()))
        folders = [confinement.scratch, room.SHARED_MEMORY] if confinement.scratch is not None else []
        tidiness = room.Tidiness(folders, room.processes_of_room, group is not None)
        room.Keeper(line, tidiness, room.end_room, confinement.limits["memory_bytes"], group, name).run(processes.Loop())
    except (kernel.Refused, OSError) as error:
        try:
            os.write(line, str(error).encode()[:1000])
        except OSError:
            pass
    room.end_room()
    os._exit(0)


def fork_worker(descriptors, confinement):
    """In a warm parent: False there, True in the worker; witness and the process on the way there do not return."""
    num_more = len(room.NAMESPACE_NAMES) if confinement.rooms else 1
    if len(descriptors) != NUM_LINES + num_more:
        raise ValueError(f"{len(descriptors)} descriptors came with a fork")
    try:
        passing = os.fork()
    except OSError:  # a fork bomb has taken all processes; the descriptors tell the program that no worker came
        passing = -1
    if passing != 0:
        for descriptor in descriptors:
            os.close(descriptor)
        if passing > 0:
            os.waitpid(passing, 0)
        return False
    try:
        if os.fork() != 0:
            os._exit(0)
        imported = open_imported(confinement)
        (join if confinement.rooms else lodge)(confinement, descriptors[NUM_LINES:])
        worker = os.fork()
        if worker != 0:
            witness(confinement, worker, descriptors)
        settle(confinement, descriptors, imported)
        return True
    except BaseException as error:
        os.write(2, f"a grader cannot be forked: {error}\n".encode())
        os._exit(1)


def join(_, namespaces):
    folder = os.getcwd()
    for namespace in namespaces:
        kernel.join_namespace(namespace)
    os.chdir(folder)  # joining a table of mounts has led to its root


def lodge(confinement, _):
    """A place without namespaces of its own."""
    kernel.become_subreaper()
    if confinement.scratch is not None:
        confinement.scratch = room.new_folder(confinement.scratch if confinement.namespaces else confinement.folder)


def open_imported(confinement):
    """The warm parent's scratch folder, if the reward's import has put something there."""
    if confinement.scratch is None or not os.listdir(confinement.scratch):
        return None
    return os.open(confinement.scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def settle(confinement, descriptors, imported):
    """The worker takes its lines and gives up the rest."""
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, descriptor in enumerate([nothing, *descriptors[: NUM_LINES - 1]]):
        os.dup2(descriptor, target)
    confinement.confine_fork()
    if imported is not None:
        import shutil  # which takes longer than all else here, and is seldom wanted

        shutil.copytree(f"/proc/self/fd/{imported}", confinement.scratch, symlinks=True, dirs_exist_ok=True)
        os.close(imported)
    for descriptor in [nothing, *descriptors]:
        os.close(descriptor)


def witness(confinement, worker, descriptors):
    report = descriptors[NUM_LINES - 1]
    if confinement.rooms:
        close_all_but({report})
        processes.send_status(report, processes.wait_for(worker))
        os._exit(0)
    line = descriptors[NUM_LINES]
    close_all_but({report, line})
    folders = [confinement.scratch] if confinement.scratch is not None else []
    tidiness = room.Tidiness(folders, lambda: processes.descendants_of(os.getpid()), False)
    keeper = room.Keeper(line, tidiness, processes.end_descendants, confinement.limits["memory_bytes"])
    status = keeper.run(processes.Loop(), worker)
    if status is not None:
        processes.send_status(report, status)
    processes.end_descendants()
    for folder in folders:
        try:
            clearing.clear(folder)
            os.rmdir(folder)
        except OSError:
            pass  # the keeper removes it in the end
    os._exit(0)


def start_afresh(mode):
    """In place of a fork that would lack threads: the same process, with a new interpreter in it."""
    os.execv(sys.executable, [sys.executable, "-m", mode, CONFINED])
