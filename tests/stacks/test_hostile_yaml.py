"""Deployment files with any content: each results in a ConfigError, without a traceback and without a long parse.

Sources: YAML 1.1 (2005-01), the types int, float, timestamp and binary, https://yaml.org/type/ (2026-11), which PyYAML
implements without limits; YAML 1.2.2, section 5.1: the printable subset excludes C0 controls.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stacks.errors import ConfigError
from stacks.loading import load
from stacks.loading.yaml_source import MAX_DEPTH, MAX_EVENTS, read_yaml

HEAD = "name: x\ncapacity:\n  instance_types: [c7i.2xlarge, c6i.2xlarge]\ntraining:\n  dataset: d\n"
FILES = {
    "impossible date": HEAD + "region: 2026-13-45\n",
    "impossible time": HEAD + "region: 2026-11-29 25:61:61\n",
    "int tag": "name: !!int x\n",
    "empty int": 'name: !!int ""\n',
    "float tag": "name: !!float x\n",
    "bool tag": "name: !!bool zz\n",
    "timestamp tag": "name: !!timestamp zz\n",
    "binary tag": "name: !!binary \u00e9\n",
    "set as key": "? !!set {a}\n: 1\n",
    "python tag": "name: !!python/object/apply:os.system [true]\n",
    "NUL": "name: x\0\n",
    "escape": "name: \x1b[2J\n",
    "escaped NUL": HEAD + '  code: "\\0"\n',
    "surrogate": HEAD + '  code: "\\uD800"\n',
    "large integer": "name: " + "9" * 5000 + "\n",
    "hexadecimal": "name: 0x" + "f" * 5000 + "\n",
    "sexagesimal": "name: 1" + ":59" * 4000 + "\n",
    "long sexagesimal": "name: 1" + ":59" * 300_000 + "\n",
    "flow nesting": "name: " + "[" * 400_000,
    "flow mappings": "name: " + "{a: " * 100_000,
    "block nesting": "".join(" " * depth + "a:\n" for depth in range(1000)),
    "flow sequence": "name: [" + "1," * 200_000 + "]\n",
    "keys": "".join(f"k{number}: 1\n" for number in range(60_000)),
    "documents": "---\n" * 100_000,
    "number keys": "1: 2\n2026-11-29: 3\nnull: 4\n.nan: 5\n",
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_each_file_is_refused_with_its_problems(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_nesting_and_size_up_to_the_limits_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    depth = MAX_DEPTH - 1
    path.write_text("a: " + "[" * depth + "]" * depth + "\n")
    assert read_yaml(path)[1] == []
    count = (MAX_EVENTS - 10) // 2
    path.write_text("".join(f"k{number}: 1\n" for number in range(count)))
    assert len(read_yaml(path)[0]) == count


WORDS = st.sampled_from(
    [
        "name",
        "capacity",
        "training",
        "nodes",
        "code",
        ": ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "\n",
        "  ",
        "!!int ",
        "!!set ",
        "? ",
    ]
    + [
        "2026-02-30",
        "1e999",
        ".inf",
        "0x",
        "0o9",
        "1:99",
        "|",
        ">",
        "'",
        '"',
        "\\x00",
        "%YAML 9.9\n",
        "---\n",
        "&a ",
        "<<",
    ]
)


@settings(max_examples=300, deadline=None)
@given(text=st.lists(WORDS | st.text(max_size=3), max_size=30).map("".join))
def test_any_text_is_a_mapping_or_a_config_error(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("yaml") / "x.yaml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        load(path)
    except ConfigError as error:
        assert error.problems
