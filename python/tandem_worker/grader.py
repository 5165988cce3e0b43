"""Grader worker: scores samples with built-in rewards, the user's function or a service, and says of each that failed
why."""

import os
import signal
import sys
import traceback

from tandem_worker import outcomes, protocol
from tandem_worker.outcomes import Failed, failure
from tandem_worker.protocol import MachineFault, one_line
from tandem_worker.rules import rewards, rules
from tandem_worker.user_functions import hints
from tandem_worker.user_functions.line_metadata import own_metadata
from tandem_worker.user_functions.random_numbers import seed_generators

# A worker starts in each run, and most run no code of the user's. So what only such code needs (asyncio, inspect: half of
# the time of a start) is imported where it is asked for.

MAX_DESCRIPTORS_LEFT = 64  # open after a call, more than before the first
MAX_TRACE_CHARACTERS = 10000  # the end, which says most; a message can be as long as it likes


class Worker:
    _facts = None
    _function = None  # the user's, or what stands for the service; None: built-in rewards
    _overlap = None

    def load(
        self,
        rm_types,
        custom_rm_path,
        service,
        reward_key,
        group_filter,
        group_rm,
        label_key,
        metadata_key,
        arguments,
        sandboxed,
    ):
        """rm_types: built-in rewards, the first of which grades samples that name none. service: what RemoteRule takes,
        and whether to try it out; or None."""
        if self._facts is None:  # else this is a worker whose warm parent has done it
            if custom_rm_path:
                from tandem_worker.user_functions.dialects import Function

                self._function = Function(custom_rm_path, group_rm, label_key, metadata_key, arguments, sandboxed)
            elif group_filter:
                from tandem_worker.user_functions.group_filter import GroupFilter

                self._function = GroupFilter(group_filter, metadata_key, arguments, sandboxed)
            elif service is not None:
                self._function = self._load_service(**service)
            self._rules = {rm_type: rules.make(rm_type) for rm_type in rm_types}
            self._rm_type = rm_types[0] if rm_types else ""
            self._facts = self._own_facts()
        self._sandboxed = sandboxed
        self._metadata_key = metadata_key
        self._folder = os.getcwd()
        self._environment = dict(os.environ)
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._descriptors = len(os.listdir("/proc/self/fd"))
        self._reward_key = reward_key
        return self._facts

    @staticmethod
    def _load_service(try_connection, **options):
        try:
            from tandem_worker.rules.remote_rule import RemoteRule  # which alone needs the package
        except ImportError as error:
            raise MachineFault(f"--rm-url needs the package urllib3: {one_line(error)}") from None
        service = RemoteRule(**options)
        if try_connection:
            service.try_connection()
        return service

    def _own_facts(self):
        function = self._function
        if function is None:
            return {"dialect": "built-in", "takes_group": False, "concurrent": False, "columns": []}
        return {
            "dialect": function.dialect,
            "takes_group": function.takes_group,
            "concurrent": function.concurrent,
            "columns": getattr(function, "columns", []),
        }

    def grade(self, calls, wait_s):
        """Takes in calls, {"call": number, "samples", "deadline_s"} each, and gives back {"call", "grades"} of those that
        have ended. Calls of an async function are gone on with for wait_s; others end here, by the program's clock."""
        if self._function is not None and self._function.concurrent:
            ended = self._overlapping(calls, wait_s)
        else:
            ended = [{"call": call["call"], "grades": self._grade_now(call["samples"])} for call in calls]
        if (self._overlap is None or self._overlap.is_empty()) and not self._is_tidy():
            ended = [{**call, "retire": True} for call in ended]  # the program has another process forked
        return ended

    def _is_tidy(self):
        """Undoes what a call may leave in the process itself; what it leaves around it is for sandbox/room.py."""
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that user code left must not ring in the next call
        os.umask(self._umask)
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        if "tempfile" in sys.modules:  # which remembers the folder that it has used
            sys.modules["tempfile"].tempdir = None
        try:
            os.chdir(self._folder)
            descriptors_left = len(os.listdir("/proc/self/fd")) - self._descriptors
        except OSError:  # most likely there is no descriptor left to look with
            return False
        return descriptors_left <= MAX_DESCRIPTORS_LEFT

    def _grade_now(self, samples):
        seed_generators(samples[0]["sample_id"])
        if self._function is None:
            return [self._graded(lambda: self._by_rule(sample)) for sample in samples]
        call = self._function.call(samples)
        return self._grades(call, lambda: self._function.result_of(call))

    def _by_rule(self, sample):
        rule = self._rules[sample["rm_type"] or self._rm_type]
        value = rule({**sample, "own_metadata": own_metadata(sample, self._metadata_key)})
        return outcomes.reward(value, self._reward_key)

    def _overlapping(self, calls, wait_s):
        if self._overlap is None:
            from tandem_worker.user_functions.overlap import Overlap

            self._overlap = Overlap(self._function.loop)
        for entry in calls:
            call = self._function.call(entry["samples"])
            key = entry["call"], call
            self._overlap.begin(key, call.start, entry["samples"][0]["sample_id"], entry["deadline_s"])
        return [
            {"call": number, "grades": self._grades(call, end)} for (number, call), end in self._overlap.go_on(wait_s)
        ]

    def _grades(self, call, end):
        """end() returns what the function returned, or raises what it raised: then all samples of the call fail."""
        values = self._graded(lambda: call.values(end()))
        if isinstance(values, list):
            grades = [self._graded(lambda: call.grade(i, value, self._reward_key)) for i, value in enumerate(values)]
        else:
            grades = [values] * call.num_samples
        return [{**grade, **call.logs(i)} for i, grade in enumerate(grades)]

    def _graded(self, grade):
        try:
            return grade()
        except MemoryError as error:
            return failure("memory", self._describe(error))
        except Failed as error:
            return failure(error.kind, error)
        except rewards.TookTooLong as error:
            return failure("deadline", error)
        except BaseException as error:  # sys.exit() in a reward function ends a grade, not the grader
            print(traceback.format_exc()[-MAX_TRACE_CHARACTERS:], file=sys.stderr)
            return failure("exception", self._describe(error))

    def _describe(self, error):
        text = outcomes.describe(error) if self._function is None else self._function.describe(error)
        return text + hints.hint_of(error, self._sandboxed)


def main():
    worker = Worker()
    protocol.serve({"load": worker.load, "grade": worker.grade}, forks="tandem_worker.grader")


if __name__ == "__main__":
    main()
