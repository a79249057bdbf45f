"""Settings of one memory: levels, input mapping, views, models, budgets, retrieval, storage.

One TOML file a use (conf/hiring.toml, ...), read by `conf_file`. Secrets are never in the file: it
names environment variables.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hltm_spark.core.prompts import TASKS

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$")]
Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Level(_Section):
    """One level of the tree, from the tenant down.

    Attributes:
        name: What a node of this level is called (`project`).
        column: Input column that holds its key; the level's name unless given.
    """

    name: Name
    column: str = ""

    @property
    def key_column(self) -> str:
        """Input column of the key."""
        return self.column or self.name


class InputMapping(_Section):
    """Which input column holds what; level columns stand with the levels.

    Attributes:
        author: Metadata name of a document's author or speaker.
    """

    doc_id: str = "doc_id"
    text: str = "text"
    kind: str = "kind"
    event_time: str = "event_time"
    metadata: str = "metadata"
    operation: str = "op"
    author: str = "author"


class DeclaredFacet(_Section):
    """A facet that every node should have where its documents say so.

    Attributes:
        name: Canonical facet name.
        aliases: Other labels for it in documents; compared without case.
        description: What it means, for the prompts.
        multiple: True where a node has a list of values (skills); else the newest value wins.
        split: True where one labelled value holds several, separated by commas.
        positive: Words that mean "yes" for it.
        negative: Words that mean "no" for it.
    """

    name: str
    aliases: tuple[str, ...] = ()
    description: str = ""
    multiple: bool = False
    split: bool = False
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()


class Hints(_Section):
    """Wishes written by hand that enter the leaf and parent prompts.

    Attributes:
        facets: Further facet names worth writing.
        questions: Question patterns worth answering.
    """

    facets: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()


class EvidenceView(_Section):
    """The view of raw documents in the shards.

    Attributes:
        enabled: Documents are embedded and searched beside the other views.
        ship_text: Shards hold the documents' text; without it a citation ends at the id.
        context_window: Neighbouring documents of the same node whose terms join, decayed.
    """

    enabled: bool = False
    ship_text: bool = True
    context_window: Annotated[int, Field(ge=0, le=10)] = 3


class ViewSettings(_Section):
    """Which views are written, and how.

    Attributes:
        layout: `separate` is four calls a node (HLTM, appendix A), `fused` is one.
        prompts: Folder with prompts of your own; the shipped ones where empty.
        min_questions: Fewest question-answer pairs that prompts ask for.
        max_questions: Most pairs kept for one node.
        min_support: A parent keeps a facet value that at least this many nodes below state,
            unless so few state any value.
    """

    layout: Literal["separate", "fused"] = "fused"
    prompts: str = ""
    min_questions: Positive = 5
    max_questions: Positive = 10
    min_support: Positive = 2
    evidence: EvidenceView = EvidenceView()

    @model_validator(mode="after")
    def _ordered_questions(self) -> Self:
        if self.min_questions > self.max_questions:
            raise ValueError(
                f"views.min_questions must be at most views.max_questions {self.max_questions}, "
                f"got {self.min_questions}"
            )
        return self


class LlmSettings(_Section):
    """How leaf and parent views, query facets and answers are written.

    Attributes:
        base_url: Root of an OpenAI-compatible API; empty is OpenAI's own.
        api_key_env: Environment variable with the key.
        max_concurrency: Calls in flight, over the whole run.
        workers: Tasks that call side by side and share the limits; as many as Spark's shuffle
            partitions where not set. More than run at once leave a part of the limits unused.
        requests_per_minute: Over the whole run; no limit where not set.
        tokens_per_minute: Of prompts and answers, over the whole run; no limit where not set.
        circuit_failures: Calls in a row that fail because the endpoint is down, after which a
            worker pauses, and tries one call at a time.
        circuit_s: Seconds of such pauses without one answer, after which the run stops.
        max_output_tokens: Upper bound of one answer.
        output_tokens_parameter: Its name in the request body, as the model wants it.
        temperature: Left out of the request where not set.
        structured_output: What the server knows; `auto` steps down from json_schema when refused.
        timeout_s: Seconds for one try.
        max_attempts: Tries for one request, temporary errors only.
        max_retry_s: Seconds that the tries of one request may take together.
        api_version: Azure only.
        execution: `batch` sends a run's requests through the provider's Batch API: cheaper, and
            answered within a day. Queries are always interactive.
        batch_max_requests: Requests of one batch file.
        batch_max_bytes: Bytes of one batch file.
        batch_poll_s: Seconds between two looks at the batches of a run.
        batch_discount: Share of the price that a batch saves.
    """

    provider: Literal["extractive", "openai", "azure"] = "extractive"
    base_url: str = ""
    model: str = ""
    api_key_env: str = "OPENAI_API_KEY"
    max_concurrency: Positive = 16
    workers: Positive | None = None
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    circuit_failures: Positive = 20
    circuit_s: Annotated[float, Field(gt=0)] = 120.0
    max_output_tokens: Positive = 2048
    output_tokens_parameter: Literal["max_tokens", "max_completion_tokens"] = (
        "max_completion_tokens"
    )
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    structured_output: Literal["auto", "json_schema", "json_object", "text"] = "auto"
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    max_attempts: Positive = 5
    max_retry_s: Annotated[float, Field(gt=0)] = 300.0
    api_version: str = "2024-10-21"
    execution: Literal["interactive", "batch"] = "interactive"
    batch_max_requests: Positive = 50_000
    batch_max_bytes: Positive = 200_000_000
    batch_poll_s: Annotated[float, Field(gt=0)] = 60.0
    batch_discount: Share = 0.5

    @model_validator(mode="after")
    def _named_model(self) -> Self:
        if self.provider != "extractive" and not self.model:
            raise ValueError(f"llm.model must be set for llm.provider {self.provider!r}")
        if self.execution == "batch" and self.provider != "openai":
            raise ValueError(
                f"llm.execution 'batch' needs llm.provider 'openai', got {self.provider!r}; "
                "set llm.execution = 'interactive'"
            )
        return self

    @property
    def model_name(self) -> str:
        """Model as the ledger records it."""
        return self.model if self.provider != "extractive" else "extractive"


class EmbeddingSettings(_Section):
    """How texts become vectors.

    Attributes:
        model: Model name at the endpoint; for wordllama its bundled configuration.
        dimension: Expected length of a vector; asked of the endpoint where it can choose.
        max_batch_items: Texts in one request.
        max_batch_tokens: Tokens in one request.
        max_text_tokens: Tokens of one text; a longer one is cut.
    """

    provider: Literal["wordllama", "openai"] = "wordllama"
    base_url: str = ""
    model: str = "l2_supercat"
    dimension: Positive = 256
    api_key_env: str = "OPENAI_API_KEY"
    max_batch_items: Positive = 256
    max_batch_tokens: Positive = 100_000
    max_text_tokens: Positive = 8000
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    max_attempts: Positive = 5

    @property
    def model_name(self) -> str:
        """Model as tables and manifests record it: provider, model and dimension."""
        return f"{self.provider}:{self.model}:{self.dimension}"

    @property
    def is_paid(self) -> bool:
        """True where vectors cost money, so that none may be lost."""
        return self.provider != "wordllama"


class Budgets(_Section):
    """Limits that keep a run or an answer within its bounds.

    Attributes:
        max_input_tokens: Tokens of one node's rendered input.
        max_failure_ratio: Share of nodes that may fail before publishing stops.
        small_run_nodes: A run of at most this many nodes works in one process: few Spark jobs.
            0 gives every run to Spark.
        max_calls: Answers that one run may pay, repairs included; no limit where not set.
        max_tokens: Tokens of prompts and completions together that one run may pay.
        max_cost: Cost of one run's answers, in the currency of the prices.
    """

    max_input_tokens: Positive = 24_000
    max_failure_ratio: Share = 0.2
    small_run_nodes: Annotated[int, Field(ge=0)] = 500
    max_calls: Annotated[int, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    max_cost: Annotated[float, Field(ge=0)] | None = None


class EvidenceWeights(_Section):
    """Weights of the evidence view's scores, each normalised within the scope.

    Attributes:
        lexical: BM25 of the document with its neighbours' decayed terms.
        vector: Cosine of the document.
        parent: BM25 of the node that holds the document.
        metadata: Bonus when the query names the document's author.
    """

    lexical: Annotated[float, Field(ge=0)] = 1.0
    vector: Annotated[float, Field(ge=0)] = 0.4
    parent: Annotated[float, Field(ge=0)] = 0.4
    metadata: Annotated[float, Field(ge=0)] = 1.0


class Retrieval(_Section):
    """How a query finds its context (HLTM, section 3.5.2).

    Attributes:
        k_match: Facets of a node that count for one query facet.
        k_facet: Nodes whose whole facet set comes back.
        k_qa: Question-answer pairs that come back.
        k_summary: Nodes whose detailed summary comes back.
        k_evidence: Documents that come back, where the evidence view is enabled.
        fast_threshold: Cosine from which a stored answer is returned without a call.
        max_context_tokens: Tokens of the context that an answer is written from.
    """

    k_match: Positive = 3
    k_facet: Positive = 5
    k_qa: Positive = 10
    k_summary: Positive = 3
    k_evidence: Positive = 10
    fast_threshold: Share = 0.85
    max_context_tokens: Positive = 6000
    evidence: EvidenceWeights = EvidenceWeights()


class Storage(_Section):
    """Where everything is kept.

    Attributes:
        root: Folder with tables/, shards/, journal/, staging/.
        journal_url: Where answers are kept until they are in the ledger: journal/ under the root
            where empty, else a path, or the URL of an object store (`s3://bucket/prefix`).
        keep_versions: Shard versions kept for readers that still have one open.
        lease_ttl_s: Seconds without a sign of life after which a run's lease may be taken over.
    """

    root: str = ""
    journal_url: str = ""
    keep_versions: Positive = 3
    lease_ttl_s: Annotated[float, Field(ge=1)] = 120.0


class Price(_Section):
    """Price of one model.

    Attributes:
        prompt: Per million prompt tokens.
        completion: Per million completion tokens.
    """

    prompt: Annotated[float, Field(ge=0)] = 0.0
    completion: Annotated[float, Field(ge=0)] = 0.0


class Settings(_Section):
    """Everything that one conf file says."""

    levels: Annotated[tuple[Level, ...], Field(min_length=1)]
    input: InputMapping = InputMapping()
    facets: tuple[DeclaredFacet, ...] = ()
    hints: Hints = Hints()
    views: ViewSettings = ViewSettings()
    llm: LlmSettings = LlmSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    budgets: Budgets = Budgets()
    retrieval: Retrieval = Retrieval()
    storage: Storage = Storage()
    prices: dict[str, Price] = {}

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        columns = [level.key_column for level in self.levels]
        columns += [v for k, v in self.input.model_dump().items() if k != "author"]
        names = [level.name for level in self.levels]
        for what, values in (("level names", names), ("input columns", columns)):
            if repeated := sorted({v for v in values if values.count(v) > 1}):
                raise ValueError(f"{what} must be distinct, {repeated} repeat")
        return self

    @property
    def level_names(self) -> tuple[str, ...]:
        """Level names, the tenant's first."""
        return tuple(level.name for level in self.levels)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks of one node, in call order."""
        return TASKS[self.views.layout]
