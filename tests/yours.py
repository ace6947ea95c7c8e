"What a file of a user's has registered, and how a test makes a process forget it."
from calibnb.core import plugins
from calibnb.data.sets import data_sets
from calibnb.losses.modules import losses
from calibnb.metrics.registered import metrics
from calibnb.models.named import models
from calibnb.posthoc.registry import CALIBRATORS
from calibnb.train.recorders import recorders

REGISTRIES = {registry.kind: registry for registry in (losses, models, data_sets, recorders, CALIBRATORS, metrics)}


def forget(path):
    "As in a process that has not imported the file."
    plugins._loaded.discard(str(path))
    gone = [key for key, origin in plugins._origins.items() if origin.where == str(path)]
    for what, name in gone:
        del plugins._origins[what, name], REGISTRIES[what][name]
        plugins._used.pop(f"{what} {name}", None)
