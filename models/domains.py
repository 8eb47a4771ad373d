"""Subjects of the synthetic records, such as persons and orders: their fields, and English phrases that state them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from models import words


@dataclass(frozen=True)
class Spoken:
    """A random value in two forms.

    Attributes:
        text: The value in prose.
        value: The value as JSON data.
    """

    text: str
    value: Any


# Function that returns a random value. The second argument is the text of the record's subject: an e-mail address, for
# example, depends on the name.
Draw = Callable[[Random, str], Spoken]


@dataclass(frozen=True)
class Field:
    """One property of a record.

    Attributes:
        keys: Possible names of the property in the answer, the usual one first.
        type: JSON Schema type of the value.
        draw: Function that returns a random value.
        clauses: Phrases that state the value, with `{}` in its place. A phrase with a full stop at its end is a whole
            sentence. The others follow the subject, such as `lives in {}`.
    """

    keys: tuple[str, ...]
    type: str
    draw: Draw
    clauses: tuple[str, ...]


@dataclass(frozen=True)
class Domain:
    """A kind of record, such as a person: a subject, and attributes of the subject.

    Attributes:
        nouns: Names of a record in an instruction, such as `person`.
        leads: Texts that can precede the subject's value at the start of a sentence, such as `My pet `.
        subject: Field of the subject, such as the name of the person.
        attributes: The other fields.
        templates: Sentences that state the subject and some attributes, with their usual keys as placeholders, such as
            `{name} ({age}) lives in {city}.`
    """

    nouns: tuple[str, ...]
    leads: tuple[str, ...]
    subject: Field
    attributes: tuple[Field, ...]
    templates: tuple[str, ...]


def plain(draw: Callable[[Random], Any]) -> Draw:
    """Return a value function for values that prose writes like JSON, but without quotes.

    Args:
        draw: Function that returns a random JSON value.
    """

    def spoken(rng: Random, _: str) -> Spoken:
        value = draw(rng)
        return Spoken(value if isinstance(value, str) else json.dumps(value), value)

    return spoken


def one_of(*choices: str) -> Draw:
    """Return a value function that selects one of the given words.

    Args:
        *choices: The words.
    """
    return plain(lambda rng: rng.choice(choices))


def named(known: list[str]) -> Draw:
    """Return a value function for proper nouns: half of them are listed, half are invented.

    Args:
        known: The listed proper nouns.
    """
    return plain(lambda rng: words.proper_noun(rng, known))


def word(known: list[str]) -> Draw:
    """Return a value function for lower-case words: 60 % of them are listed, the others are invented.

    Args:
        known: The listed words.
    """
    return plain(lambda rng: words.any_word(rng, known))


def integer(lowest: int, highest: int) -> Draw:
    """Return a value function for integers.

    Args:
        lowest: Smallest integer.
        highest: Largest integer.
    """
    return plain(lambda rng: rng.randint(lowest, highest))


def count() -> Draw:
    """Return a value function for non-negative integers of up to six digits."""
    return plain(words.whole_number)


def flag(yes: tuple[str, ...], no: tuple[str, ...]) -> Draw:
    """Return a value function for booleans.

    Args:
        yes: Phrases for true.
        no: Phrases for false.
    """

    def spoken(rng: Random, _: str) -> Spoken:
        value = rng.random() < 0.5
        return Spoken(rng.choice(yes if value else no), value)

    return spoken


def listing(draw_one: Draw, longest: int = 4) -> Draw:
    """Return a value function for arrays of strings, which prose writes as `a, b and c`.

    Args:
        draw_one: Value function of one item.
        longest: Maximum number of items.
    """

    def spoken(rng: Random, subject: str) -> Spoken:
        values = [draw_one(rng, subject).text for _ in range(rng.randint(1, longest))]
        return Spoken(enumeration(rng, values), values)

    return spoken


def enumeration(rng: Random, parts: list[str]) -> str:
    """Join texts to `a, b and c` or `a, b, c`, selected at random.

    Args:
        rng: Source of random numbers.
        parts: The texts, at least one.

    Returns:
        The joined text.
    """
    if len(parts) == 1 or rng.random() < 0.3:
        return ", ".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


_LINE_KEYS = (
    ("item", "quantity", "price"),
    ("name", "quantity", "price"),
    ("product", "qty", "unit_price"),
    ("item", "count", "cost"),
)


def order_lines(rng: Random, _: str) -> Spoken:
    """Return the lines of a random order, as an array of objects and as prose such as `2 red mug at $4.5`.

    Args:
        rng: Source of random numbers.
        _: Not used.
    """
    item_key, quantity_key, price_key = rng.choice(_LINE_KEYS)
    with_price, with_color = rng.random() < 0.6, rng.random() < 0.3
    phrase = rng.choice(("{q} {i} at ${p}", "{q} x {i} (${p})", "{q} {i} for {p} each")) if with_price else "{q} {i}"
    parts: list[str] = []
    lines: list[dict[str, Any]] = []
    for _number in range(rng.randint(1, 3)):
        item, quantity = words.any_word(rng, words.THINGS), rng.randint(1, 30)
        color, price = rng.choice(words.COLORS), words.decimal_number(rng)
        line: dict[str, Any] = {item_key: item, quantity_key: quantity}
        if with_color:
            line["color"] = color
        if with_price:
            line[price_key] = price
        parts.append(phrase.format(q=quantity, i=f"{color} {item}" if with_color else item, p=price))
        lines.append(line)
    return Spoken(enumeration(rng, parts), lines)


def _email(rng: Random, name: str) -> Spoken:
    address = words.email_address(rng, name)
    return Spoken(address, address)


def _company(rng: Random) -> str:
    tail = f" {rng.choice(words.COMPANY_TAILS)}" if rng.random() < 0.5 else ""
    return words.proper_noun(rng, words.LAST_NAMES) + tail


_CITY, _COUNTRY, _PERSON = named(words.CITIES), named(words.COUNTRIES), plain(words.person_name)
_DATE, _TIME, _DECIMAL = plain(words.date), plain(words.clock_time), plain(words.decimal_number)
_CODE, _COMPANY = plain(words.identifier), plain(_company)

PERSON = Domain(
    ("person", "contact", "customer", "user", "profile", "employee", "details"),
    ("",),
    Field(("name", "full_name", "person", "customer", "user"), "string", _PERSON,
          ("Name: {}.", "My name is {}.", "This is {}.", "I am {}.", "Contact {}.", "Meet {}.", "Hi, {} here.")),
    (
        Field(("age", "years", "age_years"), "integer", integer(1, 99),
              ("is {} years old", "is {}", "aged {}", "turned {} this year", "is {} years of age", "Age: {}.",
               "I am {} years old.", "I'm {}.", "Age {}.")),
        Field(("city", "town", "location", "home", "place", "lives_in"), "string", _CITY,
              ("lives in {}", "is from {}", "is based in {}", "comes from {}", "resides in {}", "moved to {}",
               "City: {}.", "I live in {}.", "Home: {}.")),
        Field(("email", "mail", "email_address", "contact"), "string", _email,
              ("has the email {}", "can be reached at {}", "uses {}", "Email: {}.", "Write to {}.", "E-mail {}.",
               "My email is {}.", "Contact: {}.", "The email address is {}.")),
        Field(("phone", "phone_number", "telephone", "tel"), "string", plain(words.phone_number),
              ("has the phone number {}", "can be called at {}", "Phone: {}.", "Tel: {}.", "Call {}.",
               "My number is {}.")),
        Field(("job", "occupation", "profession", "role", "title"), "string", word(words.JOBS),
              ("works as a {}", "is a {}", "is employed as a {}", "Job: {}.", "Profession: {}.", "I work as a {}.")),
        Field(("company", "employer", "organization", "works_at"), "string", _COMPANY,
              ("works at {}", "works for {}", "joined {}", "Company: {}.", "I work at {}.", "Employer: {}.")),
        Field(("country", "nationality", "origin"), "string", _COUNTRY,
              ("was born in {}", "is a citizen of {}", "Country: {}.")),
        Field(("birthday", "birth_date", "date_of_birth", "born"), "string", _DATE,
              ("was born on {}", "Birthday: {}.", "Born {}.")),
        Field(("active", "is_active", "enabled"), "boolean",
              flag(("is active", "has an active account", "Active user.", "The account is active.", "Active: yes."),
                   ("is not active", "is inactive", "Inactive user.", "The account is not active.", "Active: no.")),
              ("{}",)),
        Field(("married", "is_married"), "boolean",
              flag(("is married", "Married.", "Married: yes."), ("is not married", "is single", "Single.",
                                                                 "Married: no.")), ("{}",)),
        Field(("skills", "hobbies", "interests", "likes", "languages"), "array", listing(word(words.TOPICS)),
              ("likes {}", "enjoys {}", "knows {}", "is good at {}", "Skills: {}.", "Hobbies: {}.", "I like {}.")),
        Field(("id", "user_id", "employee_id"), "string", _CODE, ("has the ID {}", "ID: {}.", "User ID {}.")),
        Field(("children", "kids", "number_of_children"), "integer", integer(0, 9), ("has {} children", "Kids: {}.")),
        Field(("salary", "income", "pay"), "integer", count(), ("earns {}", "makes {} a year", "Salary: {}.")),
        Field(("height", "height_cm"), "integer", integer(80, 220), ("is {} cm tall", "Height: {}.")),
        Field(("favorite_color", "color"), "string", word(words.COLORS),
              ("loves the color {}", "Favorite color: {}.")),
    ),
    (
        "{name} ({age}) lives in {city}.",
        "{name}, {age}, is from {city}.",
        "{age}-year-old {name} lives in {city}.",
        "{name} from {city} is {age}.",
        "My name is {name}, I am {age} and I live in {city}.",
        "I'm {name} from {city}.",
        "{name}, a {job} from {city}, is {age} years old.",
        "{name} is a {age} year old {job}.",
        "{name} is a {job} at {company}.",
        "{name} works at {company} as a {job}.",
        "{name} <{email}>.",
        "{name} ({email}) is {age}.",
        "{city} resident {name} can be reached at {email}.",
        "Hello, I am {name} and my phone number is {phone}.",
        "{name} lives in {city} and works as a {job}.",
        "I am {name}, {age} years old.",
    ),
)  # fmt: skip

ORDER = Domain(
    ("order", "purchase", "data", "invoice"),
    ("", "Order ", "Order ", "The order ", "Invoice "),
    Field(("order_id", "id", "number", "order", "order_number"), "string", _CODE,
          ("Order {}.", "Order number: {}.", "Order ID: {}.", "This is order {}.")),
    (
        Field(("customer", "name", "buyer", "client", "customer_name"), "string", _PERSON,
              ("was placed by {}", "is for {}", "belongs to {}", "Customer: {}.", "{} ordered it.", "Sold to {}.")),
        Field(("status", "state"), "string",
              one_of("pending", "shipped", "delivered", "cancelled", "paid", "open", "returned"),
              ("is {}", "has been {}", "was {}", "Status: {}.")),
        Field(("items", "lines", "products"), "array", order_lines,
              ("contains {}", "has {}", "Items: {}.", "consists of {}", "The customer wants {}.")),
        Field(("total", "amount", "price", "cost", "sum"), "number", _DECIMAL,
              ("costs {}", "totals {}", "comes to ${}", "Total: {}.", "Total: ${}.", "The total is {}.")),
        Field(("date", "order_date", "ordered_on"), "string", _DATE,
              ("was placed on {}", "was made on {}", "Date: {}.")),
        Field(("city", "ship_to", "destination"), "string", _CITY, ("ships to {}", "goes to {}", "Ship to {}.")),
        Field(("paid", "is_paid"), "boolean",
              flag(("is paid", "has been paid", "Paid.", "Paid: yes."), ("is not paid", "is unpaid", "Unpaid.",
                                                                         "Paid: no.")), ("{}",)),
        Field(("quantity", "count", "units"), "integer", count(), ("has {} units", "Quantity: {}.", "Units: {}.")),
    ),
    (
        "{customer} placed order {order_id} for {items}.",
        "{customer} ordered {items}. The order number is {order_id}.",
        "Please send {items} to {customer}. Order number {order_id}.",
        "Order {order_id} over ${total} is {status}.",
        "Order {order_id} for {customer}: {items}.",
        "{customer} paid ${total} for order {order_id}.",
    ),
)  # fmt: skip

EVENT = Domain(
    ("event", "meeting", "appointment", "details"),
    ("The ", "A ", "Our "),
    Field(("event", "title", "name"), "string", one_of("meeting", "concert", "dinner", "workshop", "interview", "party",
          "conference", "lecture", "wedding", "exhibition", "festival", "lunch", "review", "training"),
          ("Event: {}.", "There is a {}.", "You are invited to a {}.", "We plan a {}.")),
    (
        Field(("date", "day", "when"), "string", _DATE,
              ("takes place on {}", "is on {}", "is scheduled for {}", "Date: {}.", "It is on {}.")),
        Field(("time", "start", "starts_at"), "string", _TIME,
              ("starts at {}", "begins at {}", "is at {}", "Time: {}.", "Doors open at {}.")),
        Field(("location", "city", "place", "where", "venue"), "string", _CITY,
              ("takes place in {}", "is in {}", "will be held in {}", "Location: {}.", "Place: {}.")),
        Field(("attendees", "participants", "people", "guests", "names"), "array", listing(named(words.FIRST_NAMES)),
              ("is attended by {}", "brings together {}", "Attendees: {}.", "With {}.", "{} will attend.")),
        Field(("organizer", "host", "organized_by"), "string", _PERSON,
              ("is organized by {}", "is hosted by {}", "Organizer: {}.", "Host: {}.")),
        Field(("seats", "capacity", "participants_count"), "integer", count(),
              ("has {} seats", "has room for {} people", "Seats: {}.")),
        Field(("price", "fee", "ticket_price"), "number", _DECIMAL, ("costs {}", "Tickets cost ${}.", "Price: {}.")),
        Field(("room", "hall"), "string", _CODE, ("is in room {}", "Room: {}.", "Room {}.")),
    ),
    (
        "{event} in {location} on {date}.",
        "The {event} on {date} at {time} takes place in {location}.",
        "{organizer} invites you to a {event} in {location}.",
        "On {date} there is a {event} in {location} with {attendees}.",
        "{attendees} meet for a {event} in {location} on {date}.",
        "The {event} with {attendees} is on {date}.",
    ),
)  # fmt: skip

PRODUCT = Domain(
    ("product", "item", "article", "data"),
    ("The ", "The ", "This ", "A ", "My "),
    Field(("product", "name", "item", "title"), "string", word(words.THINGS),
          ("Product: {}.", "For sale: {}.", "New {}.", "This is a {}.", "Item: {}.")),
    (
        Field(("price", "cost", "amount"), "number", _DECIMAL,
              ("costs {}", "costs ${}", "sells for {}", "is {} euros", "Price: {}.", "Price: ${}.", "Only {}.")),
        Field(("color", "colour"), "string", word(words.COLORS), ("is {}", "comes in {}", "Color: {}.")),
        Field(("brand", "maker", "manufacturer", "company"), "string", _COMPANY,
              ("is made by {}", "is from {}", "Brand: {}.", "Made by {}.")),
        Field(("stock", "quantity", "available", "units"), "integer", count(),
              ("has {} units in stock", "is available {} times", "Stock: {}.", "{} left.", "Quantity: {}.")),
        Field(("in_stock", "available", "is_available"), "boolean",
              flag(("is in stock", "is available", "In stock.", "Available now."),
                   ("is out of stock", "is not available", "is sold out", "Out of stock.", "Sold out.")), ("{}",)),
        Field(("rating", "stars", "score"), "number", plain(lambda rng: round(rng.uniform(1, 5), 1)),
              ("has a rating of {}", "is rated {}", "Rating: {}.", "Rated {} stars.")),
        Field(("weight", "weight_kg"), "number", _DECIMAL, ("weighs {} kg", "Weight: {}.")),
        Field(("sku", "id", "code", "product_id"), "string", _CODE, ("has the code {}", "SKU: {}.", "Code {}.")),
        Field(("tags", "categories", "keywords"), "array", listing(word(words.COMMON_WORDS)),
              ("is tagged {}", "Tags: {}.")),
        Field(("category", "type", "kind"), "string", one_of("electronics", "furniture", "clothing", "food", "toys",
              "sports", "garden", "office", "kitchen"), ("belongs to {}", "Category: {}.", "is filed under {}")),
    ),
    (
        "The {color} {product} costs {price}.",
        "A {color} {product} by {brand} for ${price}.",
        "{brand} sells the {product} for {price}.",
        "{product}, {color}, {price} dollars.",
        "I bought a {color} {product} for ${price}.",
    ),
)  # fmt: skip

BOOK = Domain(
    ("book", "film", "movie", "album", "work"),
    ("", "", "The book ", "The movie "),
    Field(("title", "name", "book", "movie"), "string", plain(words.title),
          ("Title: {}.", "I read {}.", "We watched {}.", "The book is called {}.", "The movie is {}.")),
    (
        Field(("author", "writer", "director", "artist", "by"), "string", _PERSON,
              ("was written by {}", "is a book by {}", "was directed by {}", "is by {}", "Author: {}.", "By {}.")),
        Field(("year", "published", "release_year"), "integer", integer(1500, 2030),
              ("was published in {}", "came out in {}", "is from {}", "appeared in {}", "Year: {}.")),
        Field(("pages", "page_count", "length"), "integer", integer(10, 1500),
              ("has {} pages", "is {} pages long", "Pages: {}.")),
        Field(("genre", "category", "kind"), "string", one_of("drama", "comedy", "novel", "thriller", "romance",
              "fantasy", "crime", "horror", "history", "science fiction", "poetry"),
              ("is a {}", "is classed as {}", "Genre: {}.")),
        Field(("language", "lang"), "string", named(words.LANGUAGES),
              ("is in {}", "was written in {}", "Language: {}.")),
        Field(("rating", "score", "stars"), "integer", integer(1, 10), ("got {} out of 10", "Rating: {}.")),
        Field(("isbn", "id"), "string", _CODE, ("has the ISBN {}", "ISBN: {}.")),
    ),
    (
        "{title} by {author} ({year}).",
        "{author} wrote {title} in {year}.",
        "{title} is a {year} {genre} by {author}.",
        "{title} ({year}) was written by {author}.",
        "I like {title} by {author}.",
    ),
)  # fmt: skip

WEATHER = Domain(
    ("weather", "report", "forecast"),
    ("", "The city of "),
    Field(("city", "location", "place", "town"), "string", _CITY,
          ("Weather in {}.", "Weather report for {}.", "City: {}.", "Here is the forecast for {}.")),
    (
        Field(("temperature", "temp", "degrees", "temperature_c"), "integer", integer(-30, 45),
              ("has {} degrees", "reports {} degrees", "is at {} degrees", "It is {} degrees.", "Temperature: {}.")),
        Field(("condition", "weather", "conditions", "sky"), "string", one_of("sunny", "cloudy", "rainy", "snowy",
              "windy", "foggy", "stormy", "clear"), ("is {}", "is {} today", "It is {}.", "Conditions: {}.")),
        Field(("humidity", "humidity_percent"), "integer", integer(5, 100),
              ("has a humidity of {}", "Humidity: {}.", "Humidity is {}%.")),
        Field(("wind", "wind_speed"), "number", _DECIMAL, ("has wind of {} km/h", "Wind: {}.", "Wind {} km/h.")),
        Field(("date", "day"), "string", _DATE, ("was measured on {}", "Date: {}.")),
    ),
    (
        "It is {temperature} degrees and {condition} in {city}.",
        "{city}: {temperature} degrees, {condition}.",
        "In {city} it is {condition} with {temperature} degrees.",
        "It is {condition} in {city} today.",
    ),
)  # fmt: skip

TRIP = Domain(
    ("flight", "trip", "ticket", "booking"),
    ("", "Flight ", "Train ", "The flight "),
    Field(("flight", "number", "train", "flight_number", "id"), "string", _CODE,
          ("Flight {}.", "Train {}.", "Your booking is {}.", "Flight number: {}.")),
    (
        Field(("from", "origin", "departure", "departure_city"), "string", _CITY,
              ("leaves from {}", "departs from {}", "starts in {}", "From {}.", "From: {}.")),
        Field(("to", "destination", "arrival", "arrival_city"), "string", _CITY,
              ("goes to {}", "flies to {}", "arrives in {}", "lands in {}", "To {}.", "To: {}.")),
        Field(("date", "day", "travel_date"), "string", _DATE, ("leaves on {}", "Date: {}.", "is on {}")),
        Field(("time", "departure_time"), "string", _TIME, ("leaves at {}", "Departure: {}.", "departs at {}")),
        Field(("passenger", "traveler", "name"), "string", _PERSON, ("is booked for {}", "Passenger: {}.")),
        Field(("seat", "gate"), "string", _CODE, ("has seat {}", "Seat: {}.", "Gate {}.")),
        Field(("price", "fare", "cost"), "number", _DECIMAL, ("costs {}", "Fare: ${}.", "Price: {}.")),
        Field(("passengers", "travelers", "adults"), "integer", integer(1, 400),
              ("carries {} passengers", "Passengers: {}.")),
        Field(("delayed", "is_delayed"), "boolean",
              flag(("is delayed", "is late", "Delayed."), ("is on time", "is not delayed", "On time.")), ("{}",)),
    ),
    (
        "{flight} from {from} to {to}.",
        "{flight} flies from {from} to {to} on {date}.",
        "{passenger} flies with {flight} from {from} to {to}.",
        "{passenger} travels from {from} to {to} with {flight}.",
    ),
)  # fmt: skip

TICKET = Domain(
    ("ticket", "issue", "request", "report"),
    ("", "Ticket ", "Issue "),
    Field(("id", "ticket", "ticket_id", "number"), "string", _CODE, ("Ticket {}.", "Issue {}.", "Ticket ID: {}.")),
    (
        Field(("priority", "severity", "urgency", "level"), "string", one_of("low", "medium", "high", "urgent",
              "critical", "normal"), ("has {} priority", "is of {} priority", "Priority: {}.", "is {}")),
        Field(("reporter", "customer", "name", "author"), "string", _PERSON,
              ("was opened by {}", "was reported by {}", "Reporter: {}.", "From {}.")),
        Field(("assignee", "owner", "assigned_to"), "string", _PERSON,
              ("is assigned to {}", "is handled by {}", "Assignee: {}.")),
        Field(("component", "module", "area"), "string", word(words.COMMON_WORDS),
              ("concerns the {}", "is about the {}", "Component: {}.")),
        Field(("open", "is_open"), "boolean",
              flag(("is open", "is still open", "Open."), ("is closed", "is not open", "Closed.")), ("{}",)),
        Field(("votes", "comments", "count"), "integer", count(), ("has {} votes", "has {} comments", "Votes: {}.")),
        Field(("created", "date", "opened_on"), "string", _DATE, ("was created on {}", "Created: {}.")),
    ),
    (
        "{reporter} opened {id} with {priority} priority.",
        "{id} was reported by {reporter}.",
        "{assignee} works on {id}.",
    ),
)  # fmt: skip

COUNTRY = Domain(
    ("country", "facts", "data"),
    ("",),
    Field(("country", "name"), "string", _COUNTRY, ("Country: {}.", "Facts about {}.", "Let us look at {}.")),
    (
        Field(("capital", "capital_city", "city"), "string", _CITY,
              ("has the capital {}", "is governed from {}", "Capital: {}.", "The capital is {}.")),
        Field(("population", "inhabitants", "people"), "integer", plain(lambda rng: words.whole_number(rng, 8)),
              ("has {} inhabitants", "has a population of {}", "Population: {}.", "is home to {} people")),
        Field(("language", "official_language"), "string", named(words.LANGUAGES),
              ("speaks {}", "Language: {}.")),
        Field(("area", "size", "area_km2"), "integer", count(), ("covers {} km2", "Area: {}.")),
        Field(("president", "leader", "head"), "string", _PERSON, ("is led by {}", "President: {}.")),
    ),
    (
        "{capital} is the capital of {country}.",
        "The capital of {country} is {capital}.",
        "{country} has {population} inhabitants and its capital is {capital}.",
    ),
)  # fmt: skip

ANIMAL = Domain(
    ("pet", "animal", "dog", "cat"),
    ("", "", "My pet "),
    Field(("name", "pet", "animal"), "string", named(words.FIRST_NAMES),
          ("Pet: {}.", "My pet is called {}.", "This is {}.", "Name: {}.")),
    (
        Field(("species", "kind", "type", "animal"), "string", one_of("dog", "cat", "horse", "rabbit", "parrot",
              "hamster", "turtle", "goat", "cow"), ("is a {}", "Species: {}.", "It is a {}.")),
        Field(("age", "years"), "integer", integer(0, 30), ("is {} years old", "is {}", "Age: {}.")),
        Field(("color", "colour"), "string", word(words.COLORS), ("is {}", "has {} fur", "Color: {}.")),
        Field(("owner", "owned_by", "human"), "string", _PERSON, ("belongs to {}", "is owned by {}", "Owner: {}.")),
        Field(("weight", "weight_kg"), "number", _DECIMAL, ("weighs {} kg", "Weight: {}.")),
        Field(("vaccinated", "is_vaccinated"), "boolean",
              flag(("is vaccinated", "Vaccinated: yes."), ("is not vaccinated", "Vaccinated: no.")), ("{}",)),
    ),
    (
        "{name} is a {color} {species}.",
        "{owner} has a {species} called {name}.",
        "{name} the {species} is {age} years old.",
        "My {species} {name} is {age}.",
    ),
)  # fmt: skip

DOMAINS = (PERSON, ORDER, EVENT, PRODUCT, BOOK, WEATHER, TRIP, TICKET, COUNTRY, ANIMAL)
