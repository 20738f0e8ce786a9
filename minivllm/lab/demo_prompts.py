"""32 questions as people ask them: most want a short answer, a few a long one."""

SHORT = [
    "What is the capital of France?",
    "Translate 'good morning' into Spanish.",
    "How many legs does a spider have?",
    "What is 7 times 8?",
    "Name three primary colors.",
    "Who wrote Romeo and Juliet?",
    "What is the boiling point of water in degrees Celsius?",
    "Give me a synonym for 'happy'.",
    "Which planet is closest to the sun?",
    "Is a tomato a fruit or a vegetable? Answer in one sentence.",
    "What does the abbreviation CPU stand for?",
    "Correct this sentence: 'She go to school every days.'",
    "What is the past tense of 'to swim'?",
    "In which year did the first human land on the moon?",
    "Name a famous painting by Leonardo da Vinci.",
    "What is the chemical symbol for gold?",
    "How do you say 'thank you' in French?",
    "What is the largest ocean on Earth?",
    "Complete the proverb: A penny saved is ...",
    "Which animal is known as the king of the jungle?",
    "What is the square root of 81?",
    "Write a title for a blog post about growing tomatoes on a balcony.",
    "Sort these words alphabetically: pear, apple, mango, banana.",
    "What is the opposite of 'ancient'?",
    "My laptop gets hot when I have many browser tabs open, and the fan is loud. I mostly write "
    "text and read the news. In one sentence: what should I try first?",
]
LONG = [
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain how a rainbow forms, step by step, to a ten-year-old.",
    "Plan a three-day trip to a small town by the sea, with one idea for each part of the day.",
    "Explain the difference between a process and a thread, with an example for each.",
    "Give me a recipe for vegetable soup, with the ingredients first and then numbered steps.",
    "Write a friendly email to a neighbor asking to borrow a ladder for the weekend, and promise "
    "to return it clean and on time.",
    "Describe the water cycle in detail.",
]
MAX_SHORT, MAX_LONG = 32, 256


def demo_prompts() -> list[tuple[str, int]]:
    """(question, max_tokens) of 32 people, the long ones scattered among the short."""
    prompts = [(question, MAX_SHORT) for question in SHORT]
    for place, question in enumerate(LONG):
        prompts.insert(2 + 4 * place, (question, MAX_LONG))
    return prompts
