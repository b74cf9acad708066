"""kafka: the records of topics as rows, by Spark's own reader, from the offsets that were committed with the last rows.

Only offsets that are committed count: Kafka itself keeps none for this reader, and no checkpoint has to be kept.
"""

from __future__ import annotations

from functools import partial

from qo.pipeline.operators.kafka_fields import ROWS_PER_BATCH
from qo.spark.io.columns import column_bodies, writable_columns
from qo.spark.operators.kafka_errors import explain_kafka
from qo.spark.operators.kafka_rows import rows_of
from qo.spark.operators.operator_context import Context, Frames
from qo.spark.operators.stream import options
from qo.spark.stream.kafka_admin import open_admin
from qo.spark.stream.kafka_progress import EARLIEST, KafkaProgress, KafkaTopics

_KAFKA = "kafka."  # Spark's reader passes options that begin so on to Kafka's client.
_PLAIN = "PLAIN"
# When an address at which nobody answers is an error; Kafka's own minute passes thrice. Not shorter than that of one
# request.
_TIMEOUT, _TIMEOUT_MS = "kafka.default.api.timeout.ms", "30000"
_REQUEST_TIMEOUT = "kafka.request.timeout.ms"


def run(context: Context) -> Frames:
    config, output = context.config, context.only_output()
    try:
        reader_options = _reader_options(context)
        records = context.spark.readStream.format("kafka").options(**reader_options).load()
    except Exception as error:
        if (problem := explain_kafka(config, error)) is None:
            raise
        raise problem from None
    frame = rows_of(records, config)
    properties = {
        name.removeprefix(_KAFKA): value for name, value in reader_options.items() if name.startswith(_KAFKA)
    }
    topics = KafkaTopics(
        names=tuple(config.get("topics", ())),
        pattern=config.get("pattern"),
        start=str(config.get("from", EARLIEST)),
        skips_expired=config.get("expired") == "skip",
    )
    columns = column_bodies(writable_columns(frame.schema))
    progress = KafkaProgress(context.run, topics, columns, partial(open_admin, context.spark, properties))
    context.later.callback(progress.close)
    context.progress.append(progress)
    context.diagnoses.append(lambda error: explain_kafka(config, error))
    return {output: frame}


def _reader_options(context: Context) -> dict[str, str]:
    config, run = context.config, context.run
    further = options(context)
    kafka = {"kafka.isolation.level": "read_committed"}
    if _REQUEST_TIMEOUT not in further:
        kafka[_TIMEOUT] = _TIMEOUT_MS
    if "user" in config:
        mechanism = str(config.get("mechanism", _PLAIN))
        module = "plain.PlainLoginModule" if mechanism == _PLAIN else "scram.ScramLoginModule"
        user, password = (
            _quote(str(each)) for each in (config["user"], run.secret(str(config["password_secret"])))
        )
        kafka |= {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": mechanism,
            "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.{module} required username={user} "
            f"password={password};",
        }
    topics = (
        {"subscribePattern": str(config["pattern"])}
        if "pattern" in config
        else {"subscribe": ",".join(config["topics"])}
    )
    return {
        **kafka,
        **further,
        **{name: run.secret(str(secret)) for name, secret in config.get("secret_options", {}).items()},
        **topics,
        "kafka.bootstrap.servers": str(config["servers"]),
        "failOnDataLoss": str(config.get("expired") != "skip").lower(),
        "maxOffsetsPerTrigger": str(config.get("rows_per_batch", ROWS_PER_BATCH)),
    }


def _quote(text: str) -> str:
    """Return a text as a login configuration of Java has it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
