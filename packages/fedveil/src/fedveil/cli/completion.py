"""`fedveil completion SHELL`: a script by which a shell completes commands and their options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from fedveil.cli import commands, console, parser_of

# After an option, or where nothing of ours fits, the shell completes file names.
_BASH = """\
_fedveil() {
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""
    case "${COMP_WORDS[1]} $before" in
%s    esac
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="%s"
    elif [ -z "$words" ] && [[ "$word" == -* ]]; then
        case "${COMP_WORDS[1]}" in
%s        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _fedveil fedveil
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="whose language to write")
    parser.epilog = (
        'bash: add  eval "$(fedveil completion bash)"  to ~/.bashrc; zsh: the same with zsh to '
        "~/.zshrc; fish: fedveil completion fish > ~/.config/fish/completions/fedveil.fish"
    )


def execute(args: argparse.Namespace) -> int:
    text = _fish() if args.shell == "fish" else _bash()
    if args.shell == "zsh":
        text = (
            "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
            + text
        )
    return console.answer(args, {"shell": args.shell, "script": text}, lambda: print(text, end=""))


def _actions() -> Iterator[tuple[str, list[argparse.Action]]]:
    """Every command with what it understands."""
    for name in commands():
        parser = parser_of(name)
        yield name, [one for one in parser._actions if one.help is not argparse.SUPPRESS]


def _bash() -> str:
    values, options = "", ""
    for name, actions in _actions():
        flags = " ".join(flag for one in actions for flag in one.option_strings)
        options += f'            {name}) words="{flags}" ;;\n'
        for one in actions:
            if not one.choices:
                continue
            # A choice of its own comes right after the command, another one after its option.
            for before in one.option_strings or [name]:
                words = " ".join(map(str, one.choices))
                values += f'        "{name} {before}") words="{words}" ;;\n'
    return _BASH % (values, " ".join(commands()), options)


def _fish() -> str:
    lines = ["complete -c fedveil -n __fish_use_subcommand -f"]
    for name, (text, _) in commands().items():
        lines.append(
            f"complete -c fedveil -n __fish_use_subcommand -f -a {name} -d {_quoted(text)}"
        )
    for name, actions in _actions():
        here = f"complete -c fedveil -n '__fish_seen_subcommand_from {name}'"
        for one in actions:
            choices = " ".join(map(str, one.choices or ()))
            given = f" -x -a {_quoted(choices)}" if choices else ""
            if not one.option_strings:
                lines += [f"{here} -f -a {_quoted(choices)}"] if choices else []
                continue
            takes = "" if one.nargs == 0 else given or " -r"
            flags = "".join(
                f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}"
                for flag in one.option_strings
            )
            lines.append(f"{here}{flags}{takes} -d {_quoted(one.help or '')}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
