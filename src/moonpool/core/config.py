"""The configuration mechanism: one frozen struct per section gives the CLI options, the
MOONPOOL_* environment, the TOML file, the docs and the validation (decision D12).

It reads no environment and prints nothing by itself; unknown names are errors, never ignored.
Precedence: command line, then environment, then file, then default.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from moonpool.core.errors import BadConfig, BadDuration, BadSize, did_you_mean
from moonpool.core.units import format_bytes, parse_bytes, parse_duration

CONFIG_ENV = "MOONPOOL_CONFIG"
_PREFIX = "MOONPOOL_"
_DURATION_SCALES = {"ms": 1000, "s": 1}
_WORDS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
# What Kubernetes and docker links put into every container beside a service called moonpool-*.
_SERVICE_LINK = re.compile(r"MOONPOOL(_\w+)?_(SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP))(_\w+)?")


def setting(
    help: str,
    *,
    unit: str = "",
    minimum: int | None = None,
    maximum: int | None = None,
    env: str = "",
    secret: bool = False,
) -> msgspec.Meta:
    """Annotates a field of a Section. `unit` is "bytes", "ms", "s" or none; `env` names a
    variable that several sections share, weaker than the section's own; secrets are never shown."""
    extra = {"unit": unit, "env": env, "secret": secret}
    return msgspec.Meta(ge=minimum, le=maximum, description=help, extra=extra)


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of one section, as seen from outside."""

    section: str
    name: str
    type: Any
    default: object
    help: str
    unit: str
    shared_env: str
    secret: bool

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env_names(self) -> tuple[str, ...]:
        """The variables that set it, the strongest first."""
        own = f"{_PREFIX}{self.section}_{self.name}".upper()
        return (own, self.shared_env) if self.shared_env else (own,)

    @property
    def is_flag(self) -> bool:
        return isinstance(self.default, bool)

    def parse(self, raw: object, origin: str) -> Any:
        """`raw` as this setting's type; raises BadConfig that names `origin` and the value."""
        try:
            return msgspec.convert(self._from_text(raw), self.type, strict=False)
        except (msgspec.ValidationError, BadSize, BadDuration) as error:
            shown = "(hidden)" if self.secret else repr(raw)
            raise BadConfig(f"{self.path} = {shown} ({origin}): {error}. {self.help}") from None

    def _from_text(self, raw: object) -> object:
        if not isinstance(raw, str):
            return raw
        if self.unit == "bytes" and raw != self.default:
            return parse_bytes(raw)
        if self.unit in _DURATION_SCALES:
            scaled = parse_duration(raw, self.unit) * _DURATION_SCALES[self.unit]
            return round(scaled, 6)
        if self.is_flag:
            return _WORDS.get(raw.lower(), raw)
        return _pairs(raw) if isinstance(self.default, dict) else raw

    def show(self, value: object) -> str:
        """`value` for people, with its unit."""
        if self.secret:
            return "(set)" if value else "(none)"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, dict):
            return ",".join(f"{key}={word}" for key, word in value.items()) or "(none)"
        if self.unit == "bytes" and isinstance(value, int):
            return format_bytes(value)
        if value == "":
            return "(none)"
        return f"{value} {self.unit}" if self.unit and isinstance(value, int) else str(value)


def _pairs(text: str) -> dict[str, str]:
    """ "rack=a,zone=b" as a dict."""
    pairs = [item.partition("=") for item in text.split(",") if item]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise BadSize(f"expected key=value pairs separated by commas, got {text!r}")
    return {key.strip(): word.strip() for key, _, word in pairs}


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections. Built in code it validates like a loaded one, units included."""

    SECTION: ClassVar[str]

    def __post_init__(self) -> None:
        for item in settings_of(type(self)):
            raw = getattr(self, item.name)
            msgspec.structs.force_setattr(self, item.name, item.parse(raw, "given in code"))
        self.check()

    def check(self) -> None:
        """Rules between several settings; raises BadConfig."""

    def __repr__(self) -> str:
        shown = (f"{item.name}={item.show(getattr(self, item.name))}" for item in self.settings())
        return f"{type(self).__name__}({', '.join(shown)})"

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        return settings_of(cls)


@cache
def settings_of(section: type[Section]) -> tuple[Setting, ...]:
    """The settings of `section`, in the order they are written."""
    return tuple(_settings(section))


def _settings(section: type[Section]) -> Iterator[Setting]:
    info = msgspec.inspect.type_info(section)
    assert isinstance(info, msgspec.inspect.StructType)
    hints = {field.name: field for field in msgspec.structs.fields(section)}
    for field in info.fields:
        meta = field.type
        assert isinstance(meta, msgspec.inspect.Metadata), f"{field.name} lacks setting(...)"
        extra, schema = meta.extra or {}, meta.extra_json_schema or {}
        default = field.default
        if default is msgspec.NODEFAULT:
            default = field.default_factory()
        yield Setting(
            section=section.SECTION,
            name=field.name,
            type=hints[field.name].type,
            default=default,
            help=schema["description"],
            unit=extra["unit"],
            shared_env=extra["env"],
            secret=extra["secret"],
        )


S = TypeVar("S", bound=Section)


class Described(NamedTuple):
    """One line of `moonpool config`."""

    setting: Setting
    value: object
    origin: str


@dataclass(frozen=True)
class Loaded(Generic[S]):
    """A section and where each of its values came from."""

    value: S
    origin: Mapping[str, str]

    def describe(self) -> list[Described]:
        return [
            Described(item, getattr(self.value, item.name), self.origin[item.name])
            for item in self.value.settings()
        ]


class Schema:
    """All sections together: only with all of them known is an unknown name an error."""

    def __init__(self, *sections: type[Section]) -> None:
        self.sections = {section.SECTION: section for section in sections}

    def load(
        self,
        section: type[S],
        *,
        cli: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        file: str | Path | None = None,
    ) -> Loaded[S]:
        """One section from all sources; `cli` holds raw values by field name, None is not given.

        `file` falls back on MOONPOOL_CONFIG of `env`. Raises BadConfig.
        """
        env = env or {}
        path = file or env.get(CONFIG_ENV)
        self._check_env(env)
        table = self._read_file(Path(path)).get(section.SECTION, {}) if path else {}
        values: dict[str, object] = {}
        origins: dict[str, str] = {}
        for item in section.settings():
            raw, origin = _pick(item, cli or {}, env, table, str(path))
            origins[item.name] = origin
            if origin != "default":
                values[item.name] = item.parse(raw, origin)
        _refuse_unknown(cli or {}, [item.name for item in section.settings()], "setting")
        return Loaded(section(**values), origins)

    def _check_env(self, env: Mapping[str, str]) -> None:
        known = [CONFIG_ENV]
        for section in self.sections.values():
            for item in section.settings():
                known.extend(item.env_names)
        ours = (name for name in env if name.startswith(_PREFIX))
        mine = [name for name in ours if not is_service_link(name, env[name])]
        _refuse_unknown(mine, known, "environment variable")

    def _read_file(self, path: Path) -> dict[str, dict[str, object]]:
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadConfig(
                f"cannot read the configuration file {path}: {error.strerror}"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadConfig(f"{path} is not valid TOML: {error}") from None
        _refuse_unknown(tables, self.sections, f"section in {path}")
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise BadConfig(f"{path}: '{name}' must be a section, written as [{name}]")
            fields = [item.name for item in self.sections[name].settings()]
            _refuse_unknown(table, fields, f"setting in [{name}] of {path}")
        return tables


def _pick(
    item: Setting,
    cli: Mapping[str, object],
    env: Mapping[str, str],
    table: Mapping[str, object],
    path: str,
) -> tuple[object, str]:
    if cli.get(item.name) is not None:
        return cli[item.name], f"command line {item.option}"
    for name in item.env_names:
        if name in env and not is_service_link(name, env[name]):
            return env[name], f"environment {name}"
    if item.name in table:
        return table[item.name], f"file {path}"
    return item.default, "default"


def _refuse_unknown(given: Mapping[str, object] | list[str], known: Any, what: str) -> None:
    for name in given:
        if name not in known:
            raise BadConfig(f"unknown {what}: '{name}'.{did_you_mean(name, known)}")


def is_service_link(name: str, value: str) -> bool:
    """True for what an orchestrator injects for a service called moonpool (not set by a person):
    MOONPOOL_MASTER_SERVICE_HOST, or MOONPOOL_MASTER_PORT holding an address of tcp://..."""
    injected_port = name.endswith("_PORT") and "://" in value
    return injected_port or _SERVICE_LINK.fullmatch(name) is not None
