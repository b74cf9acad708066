"""Every field of a definition: its kind, its limits, and what it is for.

The one table that validation, the JSON Schema and the reference page are made from or held against.
"""

from __future__ import annotations

from qo.core.pipeline.columns import Drift
from qo.core.pipeline.dag import (
    HEARTBEAT_TIMEOUT_S,
    MAX_ATTEMPTS,
    Activation,
    BackpressureMode,
    Complete,
    Join,
    Refresh,
    SinkKind,
    SourceKind,
    Strategy,
    UpdateStrategy,
)
from qo.pipeline.expectation_fields import EXPECTATION, OUTPUT_INDEX, OUTPUTS_MAX
from qo.pipeline.file_fields import FORMAT, MISSING, OPTIONS, columns
from qo.pipeline.kinds import Anything, Field, Filter, Flag, Items, Record, Table, Text, Whole, choice
from qo.pipeline.partition_fields import PARTITIONS
from qo.pipeline.sources import SOURCES, all_source_fields
from qo.pipeline.texts import (
    AGE,
    BUNDLE,
    COLUMN,
    LINE,
    LOGICAL,
    NAME,
    OUTPUT_NAME,
    QUERY,
    QUEUE,
    SINK_FILE,
    SPAN,
    TABLE,
)

JOBS_MAX = 5_000
OUTPUTS_ALL_MAX = 5_000  # Of all jobs together: each version has a row for every one of them.
CONFIG_BYTES_MAX = 65_536
WINDOW_MAX = 400  # Partitions: a year of days.

TIMEOUTS = (
    Field(
        "timeout_seconds",
        Whole(1, 86_400),
        "How long one attempt may take, in seconds. Unset: what the runtime says.",
    ),
    Field(
        "heartbeat_timeout_seconds",
        Whole(5, 3_600),
        "A running task of which nothing was heard for so long is taken away and tried again.",
        default=HEARTBEAT_TIMEOUT_S,
    ),
    Field("max_attempts", Whole(1, 100), "How often a task is tried before it has failed.", default=MAX_ATTEMPTS),
)

_JOB = "A job of this pipeline."
_OF_JOBS = tuple(
    (name, "write it as a field of the job; thresholds of queues are settings of the dispatcher")
    for name in ("max_queue_depth", "max_queue_age", "backpressure_mode")
)

FROM = Record(
    "from",
    "An output of a job of this pipeline, or a published dataset of any pipeline.",
    (Field("job", NAME, _JOB), OUTPUT_INDEX, Field("dataset", NAME, "A published dataset by its name.")),
    one_of=("job", "dataset"),
)
OUTPUT = Record(
    "output", "An output of a job of this pipeline.", (Field("job", NAME, _JOB, required=True), OUTPUT_INDEX)
)

INPUT = Record(
    "input",
    "Something that a job reads.",
    (
        Field("from", FROM, "Where it comes from.", required=True, short=(OUTPUT_NAME,)),
        Field("as", NAME, "What the operator calls it. Unset: the name of the job or dataset."),
        Field(
            "where",
            Table(COLUMN, Filter(), at_most=100),
            "Only rows whose columns have these values: one value, or a list of which one must match. Applied where "
            "the rows are read; events start tasks whether or not rows match.",
        ),
        Field(
            "trigger", Flag(), "false: it is read beside the others, but its events start nothing.", default=True
        ),
        Field(
            "refresh",
            choice(Refresh),
            "With trigger: false. What becomes of partitions that were made from this input once it has changed. "
            "manual: they are reported as stale. on_change: they are made again.",
            default="manual",
        ),
        Field(
            "window",
            Whole(1, WINDOW_MAX),
            "How many partitions back it is read, the job's own among them: 7 reads a day and the six before it.",
            default=1,
        ),
        Field(
            "offset",
            Whole(-WINDOW_MAX, WINDOW_MAX),
            "By how many partitions of the job what is read is moved: -1 reads the one before.",
            default=0,
        ),
    ),
    removed=(("job", "write it under from: {job: ...}"), ("dataset", "write it under from: {dataset: ...}")),
)

SOURCE = Record(
    "source",
    "What makes a source emit events.",
    (
        Field("kind", choice(SourceKind), "What the source waits for.", required=True, derived=True),
        *all_source_fields(),
    ),
    removed=_OF_JOBS,
)

BOOTSTRAP = Record(
    "bootstrap",
    "What happens once, when a version of the pipeline becomes active.",
    (Field("reset_outputs", Flag(), "Begin with empty outputs.", default=False),),
)
SCALING = Record(
    "scaling",
    "How much may run at once.",
    (Field("max_concurrency", Whole(1, 100_000), "Tasks of this job that may run at one time. Unset: no limit."),),
)
UDF = Record(
    "udf",
    "Code of a user, run by the runtime lambda.",
    (
        Field("bundle_id", BUNDLE, "The uploaded bundle.", required=True),
        Field("entrypoint", LINE, "What to call in it.", required=True),
    ),
)

FILES = Record(
    "files",
    "Files that arrive somewhere, and the table that is made of them.",
    (
        *SOURCES[SourceKind.FILES].config.fields,
        Field("format", FORMAT, "The format of the files. Unset: that of their names.", derived=True),
        OPTIONS,
        columns("The columns of the files. Unset: learnt from the first files, and kept."),
        MISSING,
        Field("source", NAME, "The name of the job that watches for the files. Unset: this one's, with _files."),
    ),
)

# Only for jobs of one activation; the first of each pair must be there.
SOURCE_ONLY = (("source",), ("bootstrap",))
REACTIVE_ONLY = (("inputs", "execution_strategy"), ("join", "idle_timeout", "max_queue_depth", "max_queue_age"))

JOB = Record(
    "job",
    "One step: it reads datasets and makes datasets.",
    (
        Field("name", NAME, "Its name, unique in the pipeline.", required=True),
        Field(
            "activation",
            choice(Activation),
            "source: emits events of its own accord. reactive: runs because an input changed. Unset: source for a job "
            "with a source, reactive for any other.",
            required=True,
            derived=True,
        ),
        Field(
            "runtime",
            LINE,
            "Who runs it: spark, python, lambda, container, dispatcher, or a runtime of the installation's settings. "
            "Unset: the one of a built-in operator; for a function that of defaults, else spark, or python for an "
            "always_on source.",
            required=True,
            derived=True,
        ),
        Field(
            "operator",
            LINE,
            "What runs: a built-in operator of the runtime, or module:function.",
            required=True,
            derived=True,
        ),
        Field(
            "outputs",
            Whole(0, OUTPUTS_MAX),
            "How many datasets it makes; 0 for side effects. Unset: 1.",
            required=True,
            derived=True,
        ),
        Field(
            "sql",
            QUERY,
            "Short for the operator sql with this query, or with that of a file *.sql.",
            shorthand=True,
        ),
        Field(
            "files",
            FILES,
            "Short for a source of files, and the operator ingest that makes a table of them.",
            short=(LINE,),
            shorthand=True,
        ),
        Field(
            "queue",
            QUEUE,
            "The queue of the runtime from which it runs, such as one for slow jobs. Unset: the runtime's first.",
        ),
        Field(
            "group",
            LINE,
            "Jobs with the same text are shown together, in lists and graphs. A change of it rebuilds nothing.",
        ),
        Field(
            "update_strategy",
            choice(UpdateStrategy),
            "replace: a partition written again replaces the old one. append: rows are added, once by unique_key. "
            "Unset: append with a unique_key.",
            default="replace",
        ),
        Field(
            "inputs",
            Items(INPUT, at_least=1, short=OUTPUT_NAME),
            "reactive: what it reads. What a query names is added to them: sql and alert may leave them out.",
        ),
        Field(
            "execution_strategy",
            choice(Strategy),
            "reactive: PerPartition, a task for each partition; PerUpdate, a task for each new cursor; PerChange, one "
            "task at a time for all that has changed. Unset: PerChange for latest, history and changes; PerUpdate if "
            "an input that triggers comes from a schedule, from an always_on source or from another such job; else "
            "PerPartition.",
        ),
        Field(
            "join",
            choice(Join),
            "PerPartition with several inputs. any: a task for each event of either. all: one task for a partition "
            "when every triggering input has it.",
            default="any",
        ),
        Field(
            "unique_key",
            Items(COLUMN, at_least=1, at_most=32, unique=True),
            "append: the columns that tell a row from all others, all of them from the data.",
        ),
        Field("source", SOURCE, "source: what makes it emit.", short=(choice(SourceKind),)),
        Field("bootstrap", BOOTSTRAP, "source: what happens once at the beginning."),
        Field(
            "idle_timeout",
            SPAN,
            "reactive: how long a worker stays warm without work after it has run this job, if whoever starts workers "
            "leaves that to jobs, as qo up does. Without effect on workers that you start yourself.",
        ),
        Field(
            "secrets",
            Items(LOGICAL, at_most=100, unique=True),
            "Logical names of the secrets that the operator may read, with Run.secret. Not for code of users.",
        ),
        Field("scaling", SCALING, "How much may run at once."),
        Field(
            "max_queue_depth",
            Whole(1, 1_000_000),
            "reactive: when more tasks of this job than this wait, the jobs and sources that feed it are held back.",
        ),
        Field(
            "max_queue_age",
            AGE,
            "reactive: when a task of this job has waited for longer, the jobs and sources that feed it are held "
            "back.",
        ),
        Field(
            "backpressure_mode",
            choice(BackpressureMode),
            "What it does while something that it feeds is overfull. hold: it waits. coalesce: cron, files, http: it "
            "waits, and announces once what came meanwhile. ignore: it goes on. Unset: hold, but ignore for manual and "
            "webhook.",
        ),
        *TIMEOUTS,
        Field("config", Anything(CONFIG_BYTES_MAX), "What the operator wants to know."),
        Field("udf", UDF, "The code of a user; for the operator udf."),
        Field(
            "code",
            LINE,
            "What the operator's code is known by: where it changes, the job's outputs are made anew. Unset: qo dag "
            "deploy and qo up work it out from the module and what it imports beside it.",
        ),
        Field(
            "cursor_column",
            COLUMN,
            "spark: the column whose smallest and largest value are kept with each commit.",
        ),
        Field(
            "drift",
            choice(Drift),
            "spark: what may become of the columns of an output. fail: they stay as they are. add: new ones may "
            "appear, and files that ingest reads may lack some.",
            default="fail",
        ),
        Field(
            "expectations",
            Items(EXPECTATION, at_least=1, at_most=200),
            "spark: what must be true of an output before it may be read.",
        ),
        Field(
            "partitions",
            PARTITIONS,
            "What the partitions of its outputs are. Unset: for PerPartition those of its inputs, otherwise any text.",
        ),
        Field(
            "complete",
            choice(Complete),
            "Partitions made of others: when one is made. all: once every expected one is there. announced: at the "
            "deadline, of those that are there. any: as soon as one is there.",
            default="all",
        ),
        Field(
            "deadline",
            AGE,
            "Partitions of time made of others: how long after its end, or after the first of what it reads came if "
            "that is later, one is made of what is there. Unset: it waits for all.",
        ),
    ),
    removed=(("schedule", "write it under source: {kind: cron, schedule: ...}"),),
)

DEFAULTS = Record(
    "defaults",
    "For all jobs that do not say it themselves.",
    (Field("runtime", LINE, "Where functions run. Unset: spark."), *TIMEOUTS),
    removed=_OF_JOBS,
)

_METADATA_ONLY = (
    "publishing only gives an output a name: remove it, and let the operator decide how data is written"
)

PUBLISH = Record(
    "publication",
    "The output of a job that gets a name.",
    (
        Field("from", OUTPUT, "Which one.", required=True, short=(OUTPUT_NAME,)),
        Field(
            "to",
            choice(SinkKind),
            "Where it is copied to besides, and kept up with each commit. postgres: a table in a PostgreSQL database. "
            "files: files for others, in a directory or bucket.",
        ),
        Field("table", TABLE, "postgres: the table. Unset: the name under which it is published."),
        Field(
            "database", QUEUE, "postgres: the database, by its name in the settings [sink.databases]. Unset: data."
        ),
        Field(
            "file",
            SINK_FILE,
            "files: the names of the files, such as prices/{partition}.csv. Unset: NAME/{partition}.parquet.",
        ),
        Field("directory", QUEUE, "files: where, by its name in the settings [sink.directories]. Unset: files."),
        Field(
            "keep_seconds",
            Whole(0, 31_536_000),
            "files: how long a file stays that a later one replaces, if names have a {number}. Unset: 3600.",
        ),
    ),
    removed=(("storage", _METADATA_ONLY), ("write_mode", _METADATA_ONLY), ("schema", _METADATA_ONLY)),
)

DAG = Record(
    "pipeline",
    "A pipeline: jobs, what they read, and what they publish.",
    (
        Field("name", NAME, "Its name, unique in the installation.", required=True),
        Field("description", Text("text", chars_max=10_000), "For people."),
        Field("defaults", DEFAULTS, "For all jobs that do not say it themselves."),
        Field("jobs", Items(JOB, at_least=1, at_most=JOBS_MAX), "The steps, in any order.", required=True),
        Field(
            "publish",
            Table(NAME, PUBLISH, short=OUTPUT_NAME),
            "Names under which outputs can be read by other pipelines.",
            short=(Items(NAME, at_least=1, unique=True),),
        ),
    ),
    removed=(("version", "versions are counted when a pipeline is deployed: remove it"), *_OF_JOBS),
)
