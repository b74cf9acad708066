"""qo shell: a prompt with a Spark session and the datasets of the installation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qo.cli.invocation import Session, command, new_app
from qo.cli.pipelines.dispatcher_client import require_extra

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from qo.config.settings import Settings

app = new_app()

BANNER = """\
read("NAME")             a dataset as a frame: read("daily_sales").show()
read("NAME", version=3)  the same as of an earlier commit; qo dataset history NAME lists them
spark, F, qo             the session, pyspark.sql.functions, and qo"""


@command(app, "shell")
def shell(session: Session) -> None:
    """Open a Python prompt with Spark and the datasets.

    read("NAME") is a dataset, and spark the session. It is IPython where that is installed. The session has the
    settings of Spark that workers have.
    """
    with require_extra():
        from qo.up.trial import open_session
    settings = session.settings()
    with open_session(settings) as spark:
        _prompt(name_objects(spark, settings))


def name_objects(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    """Return what a prompt has by name."""
    from pyspark.sql import functions

    import qo

    def read(name: str, *, version: int | None = None) -> DataFrame:
        """Return a dataset as a frame, as it is now or as of a version."""
        return qo.read(spark, name, version=version, settings=settings)

    return {"spark": spark, "read": read, "F": functions, "qo": qo}


def _prompt(names: dict[str, Any]) -> None:
    try:
        from IPython import start_ipython  # pyright: ignore
    except ModuleNotFoundError:
        import code

        code.interact(BANNER, local=names, exitmsg="")
    else:
        print(BANNER)
        start_ipython(argv=["--no-banner"], user_ns=names)  # pyright: ignore
