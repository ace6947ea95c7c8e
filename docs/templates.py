"A hook of mkdocs: the templates of notebook pages are compiled once, not again for every page."
from jinja2 import BytecodeCache
from nbconvert.exporters import TemplateExporter


class Compiled(BytecodeCache):
    "Templates that this build has compiled, in memory."
    def __init__(self):
        self.kept = {}

    def load_bytecode(self, bucket):
        if bucket.key in self.kept:
            bucket.bytecode_from_string(self.kept[bucket.key])

    def dump_bytecode(self, bucket):
        self.kept[bucket.key] = bucket.bytecode_to_string()


def on_startup(**options):
    compiled, new = Compiled(), TemplateExporter.environment.fget

    def environment(exporter):
        found = new(exporter)
        found.bytecode_cache = compiled
        return found

    TemplateExporter.environment = property(environment)
