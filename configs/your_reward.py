"""A reward is a function of two lists: it gives one number per response. docs/rewards.md shows rewards per token."""


def polite_and_brief(prompts: list[str], responses: list[str]) -> list[float]:
    scores = []
    for response in responses:
        words = response.lower().split()
        polite = any(word.strip(".,!?") in {"please", "thanks", "thank", "welcome", "glad", "happy"} for word in words)
        scores.append((1.0 if polite else 0.0) - 0.02 * max(len(words) - 15, 0))
    return scores
