"""Documents, queries and qrels; training sets and their batches; instructions; decontamination."""

from __future__ import annotations

from lightir.data.dataset import Dataset
from lightir.data.decontamination import DecontaminationReport, decontaminate, decontaminate_sets
from lightir.data.examples import TrainingExample
from lightir.data.hub import open_hub, read_hub_documents
from lightir.data.instructions import instructions, task_names
from lightir.data.mixture import Mixture, TrainingBatch
from lightir.data.near_duplicates import LIGHTRETRIEVER_RULES, DuplicateRules
from lightir.data.negatives import collect_candidates, read_negatives, write_negatives
from lightir.data.published_sets import ConversionReport, convert_dpr, convert_tevatron
from lightir.data.readers import are_files, count_documents, read_doc_ids, read_documents, read_qrels, read_queries
from lightir.data.self_supervision import span_pairs, title_pairs
from lightir.data.stored_vectors import StoredVectors
from lightir.data.training_set import Pair, TrainingSet
from lightir.data.triples import open_triples

__all__ = [
    "LIGHTRETRIEVER_RULES",
    "ConversionReport",
    "Dataset",
    "DecontaminationReport",
    "DuplicateRules",
    "Mixture",
    "Pair",
    "StoredVectors",
    "TrainingBatch",
    "TrainingExample",
    "TrainingSet",
    "are_files",
    "collect_candidates",
    "convert_dpr",
    "convert_tevatron",
    "count_documents",
    "decontaminate",
    "decontaminate_sets",
    "instructions",
    "open_hub",
    "open_triples",
    "read_doc_ids",
    "read_documents",
    "read_hub_documents",
    "read_negatives",
    "read_qrels",
    "read_queries",
    "span_pairs",
    "task_names",
    "title_pairs",
    "write_negatives",
]
