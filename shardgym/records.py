"""What every ShardGym record has in common: frozen, strict, JSON round trip, content hash.

A record is a pydantic dataclass that inherits `Record`. Unknown fields are refused, numbers are checked on
construction, and `digest` is a SHA-256 over the canonical JSON (sorted keys, no spaces, shortest float form) of the
fields that do not have their defaults: a field that is added, with a default, changes no digest. So a default stays
as it is as long as the `schema` does.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import operator
import os
import re
import reprlib
import typing
from abc import ABCMeta
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from shardgym.errors import InputError, closest
from shardgym.files import read_regular

#: Configuration of every record's dataclass.
CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False)

_SCHEMA = re.compile(r"shardgym\.\w{1,40}/\d{1,9}")

#: What pydantic calls the error of a field that a record does not have.
_UNKNOWN_FIELD = "unexpected_keyword_argument"

#: What is said of pydantic's errors, by their type. Of others, "Input should be ..." becomes "expected ...".
_MESSAGES = {
    _UNKNOWN_FIELD: "no such field",
    "missing": "the field is missing",
    "multiple_argument_values": "the field is given twice",
    "bool_type": "expected true or false",
    "dataclass_type": "expected an object with the fields of {class_name}",
    "dict_type": "expected an object",
    "finite_number": "expected a finite number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than_equal": "expected at most {le}",
    "literal_error": "expected {expected}",
    "string_pattern_mismatch": "expected text that matches {pattern}",
    "string_too_long": "expected at most {max_length} characters",
    "string_too_short": "expected at least {min_length} characters",
    "string_type": "expected text",
    "too_long": "expected at most {max_length} entries",
    "too_short": "expected at least {min_length} entries",
    "tuple_type": "expected a list",
    "union_tag_invalid": "{discriminator} is '{tag}', expected {expected_tags}",
    "union_tag_not_found": "the field {discriminator} is missing",
}

#: How many more wrong fields a message names after the first.
_MAX_FIELDS_NAMED = 8

_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxlevel = 3
_SHORT_REPR.maxstring = 60
_SHORT_REPR.maxlong = 60
_SHORT_REPR.maxother = 60


def short_repr(value: Any) -> str:
    """Return the beginning of a value's `repr`, at most 60 characters, however large and nested the value is."""
    return _SHORT_REPR.repr(value)[:60]


def _to_int(value: Any) -> int:
    """Accept Python and numpy integers, nothing that would have to be rounded or parsed."""
    if isinstance(value, bool):
        raise ValueError("expected a whole number, not a boolean")
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"expected a whole number, got {short_repr(value)}") from None


def _without_negative_zero(value: float) -> float:
    """Turn -0.0 into 0.0, which is equal and would be written differently."""
    return value + 0.0


#: In regular expressions: control characters, terminal sequences, line ends, invisible marks and changes of direction.
_HIDDEN = r"\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}"

_NAME = rf"^[^\s{_HIDDEN}]([^{_HIDDEN}]*[^\s{_HIDDEN}])?$"
_LABEL = r"^[A-Za-z0-9_.:+,=@/()-]([A-Za-z0-9_.:+,=@/() -]*[A-Za-z0-9_.:+,=@/()-])?$"
_ONE_LINE = rf"^[^{_HIDDEN}]*$"

#: Types of fields: a finite number, a whole number (Python's or NumPy's), a name without blanks around it, a SHA-256.
Number = Annotated[float, AfterValidator(_without_negative_zero)]
Whole = Annotated[int, BeforeValidator(_to_int)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=_NAME)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
#: What tables show of strangers: a name in letters that cannot be taken for others, one line of text, and a shorter
#: one. Where they become Markdown or HTML, they are escaped.
Label = Annotated[str, Field(max_length=200, pattern=_LABEL)]
OneLine = Annotated[str, Field(max_length=4000, pattern=_ONE_LINE)]
Note = Annotated[str, Field(max_length=1000, pattern=_ONE_LINE)]

#: What is said of text that does not match.
_PATTERNS = {
    _NAME: "expected printable text without blanks around it",
    _LABEL: "expected letters A-Z, digits and any of _ . : + , = @ / ( ) -, and no blanks around them",
    _ONE_LINE: "expected one line of printable text",
}

#: Settings of costs and solvers are small: a path, numbers, a few names.
_MAX_SETTINGS = 20_000
_MAX_DEPTH = 5


def check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as they are; raises `ValueError` when they are huge, deeply nested, or do not print."""
    if len(repr(settings)) > _MAX_SETTINGS:
        raise ValueError(f"expected settings of at most {_MAX_SETTINGS} characters")
    level: list[Any] = [settings]
    for _ in range(_MAX_DEPTH):
        parts = [part for value in level if isinstance(value, dict | list) for part in value]
        parts += [part for value in level if isinstance(value, dict) for part in value.values()]
        for text in parts:
            if isinstance(text, str) and not text.isprintable():
                raise ValueError(f"expected printable text in settings, got {short_repr(text)}")
        level = parts
    if any(isinstance(value, dict | list) for value in level):
        raise ValueError(f"expected settings that are nested at most {_MAX_DEPTH - 1} deep")
    return settings


Settings = Annotated[dict[str, Any], AfterValidator(check_settings)]


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(data: Any) -> str:
    """Return the one JSON text of `data` that hashes are taken over."""
    return _CANONICAL.encode(data)


def sha256(text: str) -> str:
    """Return the SHA-256 of `text` as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


class RecordType(ABCMeta):
    """Makes the constructors of records say in one line what is wrong, as `from_json` does."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a record; raises `InputError`."""
        try:
            return super().__call__(*args, **kwargs)
        except ValidationError as error:
            raise InputError(f"{cls.__name__}: {_explain(error, cls)}") from None


class Record(metaclass=RecordType):
    """Mixin of all records: JSON in, JSON out, and an identity."""

    #: Fields that are for display and not part of the identity.
    not_identity: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def unchecked(cls, **fields: Any) -> Self:
        """Make a record of fields that are known to be valid, where checking them would take longer than all the rest.

        Args:
            **fields: as the constructor takes them by name, in the types that it keeps them in.
        """
        record = object.__new__(cls)
        record.__dict__.update(_defaults_of(cls), **fields)
        return record

    @classmethod
    def from_dict(cls, data: Any, source: str = "") -> Self:
        """Build a record from parsed JSON.

        Raises:
            InputError: a field is missing, unknown or out of range; `source` is named in the message.
        """
        try:
            record: Self = _adapter_of(cls).validate_python(data)
            return record
        except ValidationError as error:
            why = _wrong_schema(cls, data) or _explain(error, cls)
            raise InputError(f"{source or cls.__name__}: {why}") from None

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "") -> Self:
        """Build a record from JSON text.

        Raises:
            InputError: no text, or the text is not JSON, or a field is missing, unknown or out of range.
        """
        if not isinstance(text, str | bytes | bytearray):
            where = source or cls.__name__
            raise InputError(f"{where}: expected JSON text, got {short_repr(text)}; from_dict takes parsed JSON")
        return cls.from_dict(parse_json(text, source or cls.__name__), source)

    @classmethod
    def load(cls, path: str | Path, *, follow: bool = True) -> Self:
        """Read a record from a JSON file, which may be a link unless `follow` is false; raises `InputError`."""
        return cls.from_json(read_text(path, follow=follow), source=str(path))

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON-ready lists and dictionaries."""
        data: dict[str, Any] = _adapter_of(type(self)).dump_python(self, mode="json")
        return data

    def to_json(self, indent: int | None = None) -> str:
        """Return the record as JSON text; canonical unless `indent`, a number of blanks, is given."""
        if indent is not None and not isinstance(indent, int):
            raise InputError(f"indent: expected a number of blanks, got {short_repr(indent)}")
        data = self.to_dict()
        return canonical_json(data) if indent is None else json.dumps(data, indent=indent, allow_nan=False)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON of `identity()`."""
        return sha256(canonical_json(self.identity()))

    def identity(self, leave_out: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Return the fields that make the record what it is, as JSON-ready lists and dictionaries.

        Fields in `not_identity` are left out, and those that have their defaults, in records inside of this one, too.
        What says which kind of record it is stays.

        Args:
            leave_out: more fields that are not wanted.
        """
        unwanted = set(self.not_identity | leave_out)
        data = _adapter_of(type(self)).dump_python(self, mode="json", exclude=unwanted)
        kept: dict[str, Any] = _without_defaults(self, data)
        return kept


@functools.cache  # building an adapter takes milliseconds
def _adapter_of(cls: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


@functools.cache
def _defaults_of(cls: type[Any]) -> dict[str, Any]:
    fields = dataclasses.fields(cls)
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


@functools.cache
def _json_defaults_of(cls: type[Any]) -> dict[str, Any]:
    """Return defaults as JSON has them, without those of fields that can have no other value: `schema`, `kind`."""
    hints = typing.get_type_hints(cls)
    fields = {
        name: field
        for name, field in cls.__pydantic_fields__.items()
        if not (typing.get_origin(hints[name]) is Literal and len(typing.get_args(hints[name])) == 1)
    }
    return {
        name: to_jsonable_python(field.get_default(call_default_factory=True, validated_data={}))
        for name, field in fields.items()
        if not field.is_required()
    }


@functools.cache
def _holding_defaults(cls: type[Any]) -> frozenset[str]:
    """Return the fields with records of which something may be left out."""
    hints = typing.get_type_hints(cls)
    inner = {name: _records_in(hints[name]) for name in cls.__pydantic_fields__}
    return frozenset(
        name
        for name, classes in inner.items()
        if any(_json_defaults_of(of) or _holding_defaults(of) for of in classes if issubclass(of, Record))
    )


def _without_defaults(value: Any, data: Any) -> Any:
    """Return what a record, or several of them, became as JSON without the fields that have their defaults."""
    if isinstance(value, tuple | list):
        return [_without_defaults(*pair) for pair in zip(value, data, strict=True)]
    if isinstance(value, dict):
        pairs = zip(value.values(), data.items(), strict=True)
        return {name: _without_defaults(part, of_part) for part, (name, of_part) in pairs}
    if not isinstance(value, Record):
        return data
    defaults = _json_defaults_of(type(value))
    holding = _holding_defaults(type(value))
    return {
        name: _without_defaults(getattr(value, name), part) if name in holding else part
        for name, part in data.items()
        if name not in defaults or part != defaults[name]
    }


def _wrong_schema(cls: type[Any], data: Any) -> str:
    """Say that the data are a record of another class, when their schema says so; "" otherwise."""
    schema = data.get("schema") if isinstance(data, dict) else None
    expected = getattr(cls, "schema", None)
    if not isinstance(schema, str) or not isinstance(expected, str) or not _SCHEMA.fullmatch(schema):
        return ""
    same = schema.partition("/")[0] == expected.partition("/")[0]
    return "" if same else f"this is a {schema}, expected {expected}"


def _explain(error: ValidationError, record: type[Any]) -> str:
    """Turn pydantic's report on a `record` into one line: the field, what was expected, the value.

    One error is explained; the fields of the others are named. An unknown field comes before a missing one, because it
    may be that field, misspelt.
    """
    errors = error.errors(include_url=False)
    # A list "has too few items" as its wrong items are not counted: leave out what holds something wrong itself.
    containers = {e["loc"][:end] for e in errors for end in range(1, len(e["loc"]))}
    errors = [e for e in errors if e["loc"] not in containers]
    first, *rest = sorted(errors, key=lambda e: e["type"] != _UNKNOWN_FIELD)
    field = _field_path(record, first["loc"])
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    pattern = _PATTERNS.get(first.get("ctx", {}).get("pattern", ""))
    message = pattern or _MESSAGES.get(first["type"], message.replace("{", "{{").replace("}", "}}")).format(
        **first.get("ctx", {})
    )
    value = short_repr(first["input"])
    if first["type"] == "value_error":
        message += "" if not field or message.endswith(f"got {value}") else f" (given: {value})"
    elif message.startswith("expected"):
        message += f", got {value}"
    if first["type"] == _UNKNOWN_FIELD:
        message += f"; {_closest_field(record, first['loc'])}"
    if rest:
        others = [path for path in dict.fromkeys(_field_path(record, e["loc"]) for e in rest) if path]
        named = ", ".join(others[:_MAX_FIELDS_NAMED]) + (", ..." if len(others) > _MAX_FIELDS_NAMED else "")
        message += f"; {len(rest)} more{': ' if named else ''}{named}"
    return f"{field}{': ' if field else ''}{message}".replace("\n", " ")


def _field_path(record: type[Any], location: tuple[str | int, ...]) -> str:
    """Return where something is wrong; an argument that was passed by position gets the name of its field."""
    names = [field.name for field in dataclasses.fields(record)]
    first, *rest = location or ("",)
    by_position = isinstance(first, int) and first < len(names)
    return ".".join(str(part) for part in (names[int(first)] if by_position else first, *rest) if part != "")


def _closest_field(record: type[Any], location: tuple[str | int, ...]) -> str:
    """Return "did you mean ...?" for an unknown field.

    Args:
        record: class of the record that was being built.
        location: path to the unknown field, as pydantic reports it: fields, positions and union tags.
    """
    classes = {record}
    for step in location[:-1]:
        hints = [typing.get_type_hints(cls) for cls in classes]
        inner = {cls for hint in hints if step in hint for cls in _records_in(hint[str(step)])}
        classes = inner or classes
    known = {field.name for cls in classes for field in dataclasses.fields(cls)}
    return closest(location[-1], known, most=1)


def _records_in(hint: Any) -> set[type[Any]]:
    """Return the records that a type hint names, also inside of tuples and unions."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return {hint}
    return {cls for part in typing.get_args(hint) for cls in _records_in(part)}


class _DuplicateKeyError(ValueError):
    """A JSON object has a key twice."""


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _DuplicateKeyError(f"key {short_repr(twice)} occurs twice in one object")
    return data


def _refuse_constant(token: str) -> Any:
    raise ValueError(f"{token} is not a number that JSON allows")


def parse_json(text: str | bytes, source: str) -> Any:
    """Parse JSON, refusing NaN, infinities and keys that occur twice; raises `InputError` with line and column."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_json_object)
    except _DuplicateKeyError as error:
        raise InputError(f"{source}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: not valid JSON ({error}); the file may be truncated") from None


def read_text(path: str | Path, *, follow: bool = True) -> str:
    """Read a UTF-8 text file, with or without a byte-order mark; raises `InputError` when that fails.

    Args:
        path: the file.
        follow: whether it may be a link; not for files that are found in somebody's folder.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"expected the path of a file, got {short_repr(path)}")
    try:
        return read_regular(path, follow=follow).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"cannot read {path}: it is not a UTF-8 text file") from None
