"""docs/configuration.md, written from the sections so that it cannot drift from them."""

from moonpool.core.config import CONFIG_ENV, Schema, Section, Setting

_HEAD = f"""\
# Configuration

Written by `moonpool config --markdown` from `src/moonpool/core/sections.py`; do not edit by hand.

A setting is taken from the command line, else from its environment variable, else from the TOML
file named by `--config` or `{CONFIG_ENV}`, else it has its default. `moonpool config` shows each
value and where it came from. Unknown names are errors. Sizes take units (`16KiB`, `1.5GB`),
durations too (`500ms`, `2s`); a bare number counts in the setting's own unit.
"""


def configuration_page(schema: Schema) -> str:
    """The page as markdown: one table per section."""
    return _HEAD + "".join(_section(section) for section in schema.sections.values())


def _section(section: type[Section]) -> str:
    about = (section.__doc__ or "").strip().splitlines()[0]
    head = f"\n## `[{section.SECTION}]`\n\n{about}\n\n"
    columns = "| setting | default | environment | what it does |\n| --- | --- | --- | --- |\n"
    return head + columns + "".join(map(_row, section.settings()))


def _row(item: Setting) -> str:
    variables = ", ".join(f"`{name}`" for name in item.env_names)
    return f"| `{item.name}` | {item.show(item.default)} | {variables} | {item.help} |\n"
