def vowels(prompts, responses):
    return [sum(letter in "aeiou" for letter in response) / 4 for response in responses]
