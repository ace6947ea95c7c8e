# Made by docs/doors.py (make sync) from the door beside it; do not edit.
from .command import main as main
from .command import parser as parser
