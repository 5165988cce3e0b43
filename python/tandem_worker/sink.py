"""Sink worker: scalars into a TensorBoard event file."""

import os

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tandem_worker import protocol
from tandem_worker.protocol import MachineFault, UserFault


class Worker:
    def open(self, directory):
        if os.path.islink(directory):
            raise UserFault(f"{directory}: is a symbolic link; put the folder itself in its place")
        try:
            os.makedirs(directory, exist_ok=True)
            # The library names a file by second, host and process id, which in a namespace of its own is always the same.
            self._writer = EventFileWriter(directory, filename_suffix="." + os.urandom(4).hex())
        except OSError as error:
            raise MachineFault(f"{directory}: {error.strerror}") from None

    def write(self, step, values, wall_time_s):
        """values: name -> number, or one of the strings "nan", "inf", "-inf"."""
        scalars = [Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        try:
            self._writer.add_event(Event(wall_time=wall_time_s, step=step, summary=Summary(value=scalars)))
            self._writer.flush()
        except OSError as error:
            raise MachineFault(f"event file: {error.strerror}") from None


def main():
    worker = Worker()
    protocol.serve({"open": worker.open, "write": worker.write})


if __name__ == "__main__":
    main()
