"""The same with a thread, which a fork would lack: its workers are new interpreters."""

import threading
import time

import only_there

threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


def score(data_source, solution_str, ground_truth):
    return only_there.POINTS if threading.active_count() == 2 else -1.0
