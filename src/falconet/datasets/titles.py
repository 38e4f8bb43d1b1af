"""Readable, unique film titles whose nouns follow one of the film's genres, like `The Silent Harbour (1987)`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

NOUNS = {
    "Action": "Bullet Convoy Heist Ambush Hammer Siege Bridge Pursuit Cannon Getaway Agent Vendetta Runway Outpost",
    "Adventure": "Voyage Compass Island Expedition Lagoon Summit Caravan Treasure Lighthouse River Canyon Galleon",
    "Animation": "Puppet Crayon Teapot Robin Penguin Toybox Snowflake Lantern Acorn Kite Sketchbook Beetle Marble",
    "Children": "Puppy Playground Birthday Treehouse Classroom Kitten Sandbox Pony Backpack Summer Lullaby Rabbit",
    "Comedy": "Neighbour Wedding Roommate Dentist Butler Holiday Mix-Up Landlord Umbrella Waiter Reunion Sandwich",
    "Crime": "Ledger Alibi Racket Informer Jury Safe Verdict Syndicate Bookmaker Parole Forgery Precinct Witness",
    "Documentary": "Archive Harvest Glacier Census Market Migration Factory Reef Railway Orchard Testimony Portrait",
    "Drama": "Daughter Promise Winter Letter Inheritance Silence Harbour Funeral Orphan Farewell Window Season Father",
    "Fantasy": "Dragon Spell Crown Griffin Amulet Wizard Kingdom Oracle Unicorn Rune Enchantress Goblet Prophecy Elf",
    "Film-Noir": "Shadow Alley Cigarette Nightclub Dame Blackmail Trenchcoat Rooftop Ashtray Streetlamp Saxophone",
    "Horror": "Crypt Scream Coffin Haunting Cellar Ritual Scarecrow Swarm Asylum Curse Doll Graveyard Fang Whisper",
    "Musical": "Chorus Melody Ballroom Encore Waltz Songbird Orchestra Cabaret Overture Tango Trumpet Stage Duet",
    "Mystery": "Riddle Manor Cipher Stranger Key Vanishing Mirror Clue Passenger Footprint Manuscript Locket Mask",
    "Romance": "Kiss Valentine Bouquet Sweetheart Rendezvous Serenade Honeymoon Engagement Rose Embrace Postcard",
    "Sci-Fi": "Android Nebula Starship Colony Reactor Clone Wormhole Satellite Signal Planet Machine Quantum Orbit",
    "Thriller": "Hostage Conspiracy Deadline Surveillance Tunnel Fugitive Wiretap Threshold Stalker Breach Decoy",
    "War": "Regiment Trench Armistice Bunker Battalion Medal Bomber Sniper Barracks Deserter Submarine Cavalry",
    "Western": "Saloon Sheriff Stagecoach Rancher Mustang Outlaw Prairie Gunslinger Homestead Lasso Deputy Rustler",
}
GENRES = tuple(NOUNS)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words("""
    Amber Ancient Bitter Blind Borrowed Brave Bright Broken Burning Careless Clever Cold Crimson Crooked
    Curious Dancing Daring Dark Distant Drifting Eager Electric Emerald Empty Endless Faded Faithful Fallen
    Famous Fearless Final Fleeting Forgotten Fragile Frozen Gentle Gilded Golden Grand Grey Happy Hidden
    Hollow Humble Hungry Idle Impossible Innocent Invisible Iron Jealous Last Lazy Little Lonely Lost Loud
    Lucky Magnificent Midnight Modern Nocturnal Narrow Nameless Noble Old Open Painted Pale Perfect Proud Quiet
    Rapid Reckless Red Restless Rising Royal Rusty Sacred Scarlet Second Secret Shattered Silent Silver
    Sleeping Slow Solitary Stolen Strange Stubborn Sudden Tender Tiny Unknown Velvet Wandering Wicked Wild
""")

PLACES = _words("""
    Avalon Bologna Cairo Cordoba Dakar Dover Dresden Dublin Edinburgh Fargo Galway Geneva Goa Hanoi Havana
    Helsinki Istanbul Jaipur Kyoto Lima Lisbon Lyon Madras Malta Marseille Memphis Naples Odessa Oslo Palermo
    Prague Quebec Reykjavik Riga Samarkand Seville Tangier Tunis Valparaiso Zanzibar
""")


def make_titles(genre_I: Ints, year_I: Ints, random: np.random.Generator) -> list[str]:
    """One title per item: `genre_I` indexes GENRES, `year_I` are release years. No title occurs twice."""
    titles: list[str] = [""] * len(genre_I)
    for genre, name in enumerate(GENRES):
        members = np.flatnonzero(genre_I == genre)
        nouns = NOUNS[name].split()
        pairs = len(nouns) * len(ADJECTIVES)
        order = random.permutation(pairs)
        for count, item in enumerate(members):
            title = _title(count, order, nouns)
            titles[item] = f"{title} ({year_I[item]})"
    return titles


def _title(count: int, order: Ints, nouns: Sequence[str]) -> str:
    """The title of a genre's item number `count`: pairs of words plain and with `The`, with each place, as sequels."""
    turn, place_in_turn = divmod(count, len(order))
    adjective, noun = divmod(int(order[place_in_turn]), len(nouns))
    pair = f"{ADJECTIVES[adjective]} {nouns[noun]}"
    # Half of the plain turn takes the article, so that small catalogues vary too; the second turn takes the other half.
    if turn < 2:
        return f"The {pair}" if (place_in_turn + turn) % 2 else pair
    sequel, place = divmod(turn - 2, len(PLACES))
    title = f"{pair} of {PLACES[place]}"
    return title if sequel == 0 else f"{title}, Part {sequel + 1}"
