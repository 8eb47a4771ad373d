"""Random values of the synthetic records: words from short lists, and invented words.

If all names came from a list, the model would learn the list. So about half of all names and words, and all identifiers
and numbers, are random: to answer correctly, the model must copy them from the prompt.

All functions take a source of random numbers, `rng`.
"""

from random import Random


def _listed(text: str) -> list[str]:
    """Return the words of `text`, in which `~` stands for a space inside a word."""
    return [word.replace("~", " ") for word in text.split()]


FIRST_NAMES = _listed("""
    Alice Bob Carol David Emma Frank Grace Henry Iris Jack Karen Liam Mia Noah Olivia Paul Quinn Rosa Sam Tina
    Uma Victor Wendy Xander Yara Zoe Juan Maria Chen Wei Aisha Omar Priya Ravi Elena Ivan Anna Ben Clara Daniel
    Eva Felix Hannah Jonas Julia Kim Laura Lucas Max Nina Oscar Peter Ruth Sara Tom Ada Alan Grace Linus Marie
    Isaac Nora Hugo John Jane James Mary Robert Linda Michael Susan William Sarah Thomas Lisa Mark Nancy Steven
    Betty George Helen Kenji Yuki Hiro Mei Lin Fatima Ali Hassan Leila Amara Kofi Chidi Zanele Pedro Lucia Diego
    Carmen Pierre Claire Luc Sofia Marco Giulia Lars Ingrid Sven Astrid Olga Dmitri Natasha José Zoë André Renée
    Björn Jürgen Małgorzata Søren
""")
LAST_NAMES = _listed("""
    Smith Jones Brown Garcia Miller Davis Lopez Wilson Anderson Thomas Taylor Moore Martin Lee Thompson White
    Harris Clark Lewis Walker Hall Young King Wright Hill Green Adams Baker Johnson Williams Rodriguez Martinez
    Jackson Perez Sanchez Robinson Allen Scott Torres Nguyen Flores Rivera Campbell Mitchell Carter Roberts
    Turner Parker Evans Edwards Collins Stewart Morris Murphy Cook Rogers Cooper Reed Bailey Bell Kelly Howard
    Ward Cox Diaz Patel Khan Singh Kumar Chen Wang Tanaka Sato Suzuki Kim Park Okafor Mensah Silva Santos Rossi
    Ferrari Müller Schmidt Weber Novak Kowalski Ivanov Petrov Hansen Larsen Nielsen Dubois Lefèvre O'Brien
    Lovelace Turing Hopper Curie Newton
""")
CITIES = _listed("""
    Paris London Berlin Tokyo Madrid Rome Lagos Cairo Delhi Lima Oslo Boston Denver Austin Seattle Toronto
    Dublin Vienna Prague Sydney Athens Bangkok Chicago Dallas Geneva Hamburg Helsinki Houston Istanbul Jakarta
    Kyoto Lisbon Lyon Manila Melbourne Miami Milan Montreal Moscow Mumbai Munich Nairobi Naples Osaka Oxford
    Porto Santiago Seoul Shanghai Singapore Stockholm Tunis Turin Valencia Venice Warsaw Zurich Zürich Málaga
    Amsterdam Barcelona New~York San~Francisco Los~Angeles Hong~Kong Cape~Town Buenos~Aires São~Paulo
    Mexico~City Las~Vegas
""")
COUNTRIES = _listed("""
    France Germany Spain Italy Japan China India Brazil Canada Mexico Peru Egypt Kenya Norway Sweden Poland
    Greece Turkey Ireland Portugal Chile Ghana Vietnam Austria Denmark Finland Nigeria Australia
""")
THINGS = _listed("""
    laptop phone desk chair lamp book bike camera guitar jacket kettle mug router tablet watch tent keyboard
    mouse monitor printer sofa table shirt hat scarf bag backpack bottle pen pencil notebook candle clock mirror
    rug towel pillow blanket toaster oven fridge drill hammer rope ladder bucket shovel helmet glove boot sock
    shoe ring necklace apple banana orange lemon potato onion carrot bread cheese egg pizza burger sandwich
    salad coffee tea juice
""")
COLORS = _listed("red green blue black white silver yellow purple orange brown pink grey")
JOBS = _listed("""
    engineer teacher doctor nurse lawyer chef pilot baker artist writer farmer plumber designer student driver
    carpenter scientist journalist manager architect dentist actor singer programmer analyst librarian
""")
TOPICS = _listed("""
    music chess history physics football cooking reading travel painting python rust java sql french german
    spanish english gardening swimming tennis yoga poetry math biology chemistry cinema dance hiking sailing
    running
""")
LANGUAGES = _listed("""
    English French German Spanish Italian Japanese Russian Polish Chinese Hindi Arabic Portuguese Swahili Greek
    Turkish Dutch Swedish Korean
""")
COMPANY_TAILS = ["Inc", "Ltd", "Corp", "Labs", "Systems", "Group", "Foods", "Books", "Motors", "Studio"]
EMAIL_HOSTS = ["example.com", "mail.com", "example.org", "corp.net", "test.io", "company.com"]
TITLE_WORDS = _listed("""
    The A Lost Last Silent River Night Garden Winter Summer Road House Star Sea Stone King Shadow Dream Fire
    Glass Secret Long Blue Little Great Island City Wind Time Light Moon Forest Song World Machine Letters
    Memory
""")
GOOD_WORDS = _listed("""
    great excellent wonderful amazing fantastic lovely perfect good superb delightful brilliant comfortable
""")
BAD_WORDS = _listed("terrible awful horrible bad poor disappointing broken useless boring slow ugly dreadful")
COMMON_WORDS = _listed("""
    time year people way day man thing woman life child world school state family group country problem hand
    part place case week company system program question work government number night point home water room
    mother area money story fact month lot right study book eye job word business issue side kind head house
    service friend father power hour game line end member law car city name team minute idea body back parent
    face level office door health person art war history party result change morning reason research girl guy
    moment air teacher force
""")

_ONSETS = _listed("b c d f g h j k l m n p r s t v w z br ch cl dr fr gl gr kr pl qu sh sk sl st th tr")
_VOWELS = _listed("a e i o u a e i o u a e i o u ai ea ee ia oa ou")
_CODAS = [*[""] * 12, "n", "r", "l", "s", "t", "m", "k", "x", "nd", "rt", "ck", "th"]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def invented_word(rng: Random) -> str:
    """Return a pronounceable lower-case word of one to four syllables, or (one time in ten) random letters."""
    if rng.random() < 0.1:
        return "".join(rng.choices(_LETTERS, k=rng.randint(2, 6)))
    syllables = rng.choices((1, 2, 3, 4), weights=(2, 6, 3, 1))[0]
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))


def proper_noun(rng: Random, known: list[str]) -> str:
    """Return a capitalized name: one of `known`, or an invented one (half of the time)."""
    return rng.choice(known) if rng.random() < 0.5 else invented_word(rng).capitalize()


def any_word(rng: Random, known: list[str]) -> str:
    """Return a word: one of `known`, or an invented lower-case one (40 % of the time)."""
    return rng.choice(known) if rng.random() < 0.6 else invented_word(rng)


def person_name(rng: Random) -> str:
    """Return a first name, in most cases with a last name."""
    first = proper_noun(rng, FIRST_NAMES)
    shape = rng.random()
    if shape < 0.12:
        return first
    last = proper_noun(rng, LAST_NAMES)
    if shape < 0.17:
        return f"{first} {rng.choice(_LETTERS).upper()}. {last}"
    return f"{first}-{last}" if shape < 0.19 else f"{first} {last}"


def digits(rng: Random, lowest: int, highest: int) -> str:
    """Return a string of `lowest` to `highest` random digits. The first digit is not 0."""
    return str(rng.randint(1, 9)) + "".join(rng.choices("0123456789", k=rng.randint(lowest, highest) - 1))


def whole_number(rng: Random, longest: int = 6) -> int:
    """Return a non-negative integer with a uniformly distributed number of digits, from 1 to `longest`."""
    length = rng.randint(1, longest)
    return rng.randint(0, 9) if length == 1 else int(digits(rng, length, length))


def decimal_number(rng: Random) -> float:
    """Return a positive number with at most two decimals."""
    return round(rng.choice((10, 100, 1000)) * rng.random() + 0.11, rng.choice((1, 2, 2)))


def identifier(rng: Random) -> str:
    """Return a code such as `AX-4821`, `7f3k2` or `lona_91`."""
    shape = rng.random()
    if shape < 0.4:
        letters = "".join(rng.choices(_LETTERS.upper(), k=rng.randint(1, 3)))
        return f"{letters}{rng.choice(('-', '-', '', '#'))}{digits(rng, 2, 5)}"
    if shape < 0.7:
        return "".join(rng.choices(_LETTERS + "0123456789", k=rng.randint(4, 8)))
    if shape < 0.85:
        return f"{invented_word(rng)}{rng.choice('_-')}{digits(rng, 1, 3)}"
    return digits(rng, 4, 8)


def date(rng: Random) -> str:
    """Return an ISO date of the years 1950 to 2035, `YYYY-MM-DD`."""
    return f"{rng.randint(1950, 2035)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def clock_time(rng: Random) -> str:
    """Return a time of day, `HH:MM`."""
    return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"


def phone_number(rng: Random) -> str:
    """Return a telephone number in one of three common formats, such as `555-0134`."""
    shape = rng.choice(("{}-{}", "+{2} {0} {1}", "{2}-{0}-{1}"))
    return shape.format(digits(rng, 3, 3), digits(rng, 4, 4), digits(rng, 1, 3))


def title(rng: Random) -> str:
    """Return a title of two to four words, as of a book."""
    words = [rng.choice(TITLE_WORDS) for _ in range(rng.randint(1, 3))]
    return " ".join([*words, invented_word(rng).capitalize() if rng.random() < 0.4 else rng.choice(TITLE_WORDS)])


def email_address(rng: Random, name: str) -> str:
    """Return an e-mail address. In three of four cases, the part before `@` comes from the person name `name`."""
    parts = [part.strip(".").lower() for part in name.replace("'", "").split()]
    shape = rng.random()
    if shape < 0.5:
        local = ".".join((parts[0], parts[-1])) if len(parts) > 1 else parts[0]
    elif shape < 0.75:
        local = parts[0]
    else:
        local = invented_word(rng) + (digits(rng, 1, 3) if rng.random() < 0.5 else "")
    host = (
        rng.choice(EMAIL_HOSTS) if rng.random() < 0.7 else f"{invented_word(rng)}.{rng.choice(('com', 'org', 'net'))}"
    )
    return f"{local}@{host}"
