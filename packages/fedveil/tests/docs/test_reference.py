"""The generated reference has every command with its arguments, and every public name."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import fedveil as fv
from fedveil.cli import commands as registered
from fedveil.cli import parser_of
from tools.docs_site import commands, python


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:  # argparse has no public list of them
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def test_every_command_and_option_is_in_the_reference() -> None:
    sections = dict(re.findall(r"^#+ (fedveil .+)\n((?:(?!#).*\n)*)", commands(), re.MULTILINE))
    known = [one for name in registered() for one in parsers(parser_of(name))]
    assert set(sections) == {parser.prog for parser in known}
    for parser in known:
        for option in parser._option_string_actions:
            if option not in ("-h", "--help"):
                assert option in sections[parser.prog], f"{parser.prog} {option}"


def test_every_public_name_is_in_the_reference_with_its_docstring() -> None:
    text = python()
    assert set(re.findall(r"^### fv\.(\w+)$", text, re.MULTILINE)) == set(fv.__all__)
    assert "*Attributes*\n\n* `round_number`: " in text
    assert "* `seconds`: " in text  # of RoundReport: fields are a list
