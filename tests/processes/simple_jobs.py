"""Jobs that programs of the tests ask for; they import nothing heavy, so that such a program begins at once."""
import multiprocessing
import os
import signal
import time


def sleep(seconds, path, send):
    path.write_text(str(os.getpid()))
    time.sleep(seconds)


def add_up(n, send):
    import torch
    return torch.get_num_threads(), torch.ones(n).sum().item()


def outlive(file, send):
    "Outlive the parent, then send a message and return a value."
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    file.write_text(str(os.getpid()))
    while multiprocessing.parent_process().is_alive():
        time.sleep(0.01)
    send("is anybody there?")
    return "an answer"


def call(job, *args, send):
    return job(*args, send=send)
