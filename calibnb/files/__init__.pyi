# Made by docs/doors.py (make sync) from the door beside it; do not edit.
from .predictions import read_sets as read_sets
from .predictions import read_predictions as read_predictions
from .pieces import read_pieces as read_pieces
from .pieces import write_pieces as write_pieces
