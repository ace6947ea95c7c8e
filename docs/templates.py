"A hook of mkdocs: it compiles the templates of notebook pages once instead of once per page."
from jinja2 import BytecodeCache
from nbconvert.exporters import TemplateExporter


class Compiled(BytecodeCache):
    "The compiled templates of this build, in memory."
    def __init__(self):
        self.bytecode = {}

    def load_bytecode(self, bucket):
        if bucket.key in self.bytecode:
            bucket.bytecode_from_string(self.bytecode[bucket.key])

    def dump_bytecode(self, bucket):
        self.bytecode[bucket.key] = bucket.bytecode_to_string()


def on_startup(**options):
    compiled, new = Compiled(), TemplateExporter.environment.fget

    def environment(exporter):
        found = new(exporter)
        found.bytecode_cache = compiled
        return found

    TemplateExporter.environment = property(environment)
