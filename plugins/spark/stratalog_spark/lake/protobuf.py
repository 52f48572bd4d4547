"""Conversion of Protobuf messages to columns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from stratalog.errors import ConfigError, PluginImportError
from stratalog_spark.parquet.values import ValueParser

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_PRIMITIVES: Final[dict[str, Any]] = {  # by the names of FieldDescriptor.TYPE_
    "DOUBLE": pa.float64(), "FLOAT": pa.float32(), "BOOL": pa.bool_(), "STRING": pa.string(), "BYTES": pa.binary(),
    "ENUM": pa.string(), "INT64": pa.int64(), "SINT64": pa.int64(), "SFIXED64": pa.int64(), "INT32": pa.int32(),
    "SINT32": pa.int32(), "SFIXED32": pa.int32(), "UINT32": pa.int64(), "FIXED32": pa.int64(),
}  # fmt: skip
_UNSIGNED: Final = frozenset({"UINT64", "FIXED64"})


def compile_proto(text: str) -> bytes:
    """Compile the text of a ``.proto`` file. Return a serialized ``FileDescriptorSet`` that includes its imports.

    Raises:
        ConfigError: the text is not valid.
        PluginImportError: grpcio-tools is not installed.
    """
    if find_spec("grpc_tools") is None:
        raise PluginImportError("schemas as .proto text need grpcio-tools", "spark", "stratalog[protobuf]")
    protoc = import_module("grpc_tools.protoc")
    package = Path(str(protoc.__file__)).parent
    with tempfile.TemporaryDirectory(prefix="stratalog-proto-") as folder:
        (Path(folder) / "value.proto").write_text(text, encoding="utf-8")
        output = Path(folder) / "value.pb"
        include = [f"-I{folder}", f"-I{package / '_proto'}"]
        exit_code = protoc.main(
            [
                "protoc",
                *include,
                "--include_imports",
                f"--descriptor_set_out={output}",
                str(Path(folder) / "value.proto"),
            ]
        )
        if exit_code:
            raise ConfigError(
                "protoc cannot compile the .proto schema; its messages are on the standard error. Pass a schema that "
                "imports others as a serialized FileDescriptorSet"
            )
        return output.read_bytes()


class ProtobufValues(ValueParser):
    """Parser of Protobuf messages.

    Args:
        descriptors: a serialized ``FileDescriptorSet``. The values are messages of the first message type in its last
            file.
        indexed: True if the message indexes of a schema registry precede each message.

    Raises:
        ConfigError: the descriptors are not valid, or a message type contains itself.
        PluginImportError: protobuf is not installed.
    """

    def __init__(self, descriptors: bytes, *, indexed: bool) -> None:
        try:
            pb2 = import_module("google.protobuf.descriptor_pb2")
        except ImportError as error:
            raise PluginImportError(
                "values in Protobuf need the library protobuf", "spark", "stratalog[protobuf]"
            ) from error
        try:
            files = pb2.FileDescriptorSet.FromString(descriptors).file
        except import_module("google.protobuf.message").DecodeError as error:
            raise ConfigError(f"the Protobuf schema is not a serialized FileDescriptorSet: {error}") from None
        if not files or not files[-1].message_type:
            raise ConfigError("the Protobuf schema has no message")
        pool = import_module("google.protobuf.descriptor_pool").DescriptorPool()
        for file in files:
            pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
        package = f"{files[-1].package}." if files[-1].package else ""
        descriptor = pool.FindMessageTypeByName(package + files[-1].message_type[0].name)
        self._indexed = indexed
        self._new: Callable[[], Any] = import_module("google.protobuf.message_factory").GetMessageClass(descriptor)
        self._decode_error = import_module("google.protobuf.message").DecodeError
        self.type, self._convert = self._struct(descriptor, ())

    def _parse_value(self, value: bytes) -> object:
        start = 0
        if self._indexed:
            if value[:1] == b"\0":  # short form of the index of the first message type in the file, the usual case
                start = 1
            elif value[:2] == b"\x02\0":
                start = 2
            else:
                return None
        message = self._new()
        try:
            message.ParseFromString(value[start:])
            return self._convert(message)
        except (self._decode_error, OverflowError, ValueError):
            return None

    def _struct(self, descriptor: Any, parents: tuple[str, ...]) -> tuple[Any, Callable[[Any], Any]]:
        """Return the Arrow type of a message type, and the function that converts a message to a dict."""
        if descriptor.full_name in parents:
            raise ConfigError(f"Protobuf message {descriptor.full_name} cannot be a column, because it contains itself")
        fields = [(field, *self._field(field, (*parents, descriptor.full_name))) for field in descriptor.fields]
        converters = [(field.name, field.has_presence, convert) for field, _, convert in fields]

        def convert_message(message: Any) -> dict[str, Any]:
            return {
                name: None if presence and not message.HasField(name) else convert(getattr(message, name))
                for name, presence, convert in converters
            }

        return pa.struct([pa.field(field.name, kind) for field, kind, _ in fields]), convert_message

    def _field(self, field: Any, parents: tuple[str, ...]) -> tuple[Any, Callable[[Any], Any]]:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            (key, to_key), (item, to_item) = (
                self._single(entry.fields_by_name[name], parents) for name in ("key", "value")
            )
            return pa.map_(key, item), lambda entries: [(to_key(name), to_item(entries[name])) for name in entries]
        kind, convert = self._single(field, parents)
        if field.is_repeated:
            return pa.list_(kind), lambda values: [convert(value) for value in values]
        return kind, convert

    def _single(self, field: Any, parents: tuple[str, ...]) -> tuple[Any, Callable[[Any], Any]]:
        message = field.message_type
        if message is not None and message.full_name == _TIMESTAMP:
            return pa.timestamp("us", tz="UTC"), lambda value: value.seconds * 1_000_000 + value.nanos // 1_000
        if message is not None and message.full_name in _WRAPPERS:
            kind, convert = self._single(message.fields_by_name["value"], parents)
            return kind, lambda value: convert(value.value)
        if message is not None:
            return self._struct(message, parents)
        if field.enum_type is not None:
            names = {value.number: value.name for value in field.enum_type.values}
            return pa.string(), lambda value: names.get(value, str(value))
        name = _type_name(field)
        if name in _UNSIGNED:
            return pa.decimal128(20, 0), Decimal
        return _PRIMITIVES[name], lambda value: value


def _type_name(field: Any) -> str:
    return next(
        name.removeprefix("TYPE_")
        for name in dir(field)
        if name.startswith("TYPE_") and getattr(field, name) == field.type
    )
