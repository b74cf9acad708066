"""qo completion: shell completion scripts."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from qo.cli.invocation import new_app
from qo.cli.main import COMPLETE_VARIABLE, main

app = new_app()


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command("completion")
def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print the completion script of a shell.

    For bash, add to ~/.bashrc: eval "$(qo completion bash)".  For zsh, to ~/.zshrc after compinit: eval "$(qo
    completion zsh)".  For fish: qo completion fish > ~/.config/fish/completions/qo.fish
    """
    os.environ[COMPLETE_VARIABLE] = f"source_{shell}"
    main([])
