# Made by docs/doors.py (make sync) from the door beside it; do not edit.
from .predictions import read_sets as read_sets
from .predictions import read_predictions as read_predictions
from .several import read_models as read_models
from .several import read_multilabel as read_multilabel
from .pieces import read_pieces as read_pieces
from .pieces import write_pieces as write_pieces
