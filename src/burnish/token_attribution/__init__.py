"""Every generated token as a state-action pair."""

from burnish.token_attribution.sa_pairs import COLUMNS, SAPairs, as_sa_pairs

__all__ = ["COLUMNS", "SAPairBuilder", "SAPairs", "TokenAttributionExtractor", "as_sa_pairs"]
