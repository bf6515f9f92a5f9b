//! Turns: which part of a conversation's results a diffusion model gets. Templates begin with instructions that it was not
//! trained on.

use super::encoder::{Kept, pictures_in};
use super::tokens::{Symbol, Token};

/// Qwen's beginning of a turn, and what stands behind it in a user's: "user" and a line break.
const QWEN_TURN: u32 = 151_644;
const QWEN_USER: [u32; 2] = [872, 198];
/// Llama 3's beginning and end of a turn's name, "user", the end of a turn, and an empty line.
const LLAMA_NAME: u32 = 128_006;
const LLAMA_NAMED: u32 = 128_007;
const LLAMA_USER: u32 = 882;
const LLAMA_END: u32 = 128_009;
const LLAMA_EMPTY_LINE: u32 = 271;

/// What stands in Qwen's conversation from the second turn on, without the name of a user's turn.
pub(crate) fn from_second_turn(tokens: &[Token], _picture_step: usize) -> Vec<Kept> {
    let turns = tokens.iter().enumerate().filter(|(_, token)| token.symbol == Symbol::Id(QWEN_TURN));
    // Without any turn the reference keeps the last token alone.
    let Some((turn, _)) = turns.take(2).last() else {
        return vec![Kept::all(tokens.len().saturating_sub(1)..tokens.len())];
    };
    let name = tokens.get(turn + 1..turn + 3).unwrap_or_default();
    let is_user =
        name.len() == 2 && name.iter().zip(QWEN_USER).all(|(token, id)| token.symbol == Symbol::Id(id));
    let start = if is_user && tokens.len() > turn + 3 { turn + 3 } else { turn };
    vec![Kept::all(start..tokens.len())]
}

/// What stands in Qwen's conversation from the second turn on, with the name of the turn.
pub(crate) fn whole_second_turn(tokens: &[Token], _picture_step: usize) -> Vec<Kept> {
    let turns = tokens.iter().enumerate().filter(|(_, token)| token.symbol == Symbol::Id(QWEN_TURN));
    let start = turns.take(2).last().map_or(0, |(turn, _)| turn);
    vec![Kept::all(start..tokens.len())]
}

/// What a user says in Llama 3's conversation, with the end of the turn, behind parts of the pictures that were shown
/// before.
pub(crate) fn user_turn(tokens: &[Token], picture_step: usize) -> Vec<Kept> {
    let is = |at: usize, id: u32| tokens.get(at).is_some_and(|token| token.symbol == Symbol::Id(id));
    let names_user = |at: &usize| is(*at, LLAMA_NAME) && is(at + 1, LLAMA_USER) && is(at + 2, LLAMA_NAMED);
    let first_user = (0..tokens.len()).find(names_user);
    let (start, end) = match (0..tokens.len()).rev().find(names_user) {
        None => (0, tokens.len()),
        Some(user) => {
            let named = user + 2;
            let start = if is(named + 1, LLAMA_EMPTY_LINE) { named + 2 } else { named };
            let end = (named..tokens.len()).find(|at| is(*at, LLAMA_END)).map(|at| at + 1);
            (start, end.unwrap_or(tokens.len().saturating_sub(1)))
        }
    };
    let shown_before = |at: usize| first_user.is_none_or(|user| at < user);
    let pictures = pictures_in(tokens).into_iter().filter(|(at, _, _)| shown_before(*at));
    let mut kept: Vec<Kept> =
        pictures.map(|(at, _, parts)| Kept { tokens: at..at + parts.len(), step: picture_step }).collect();
    kept.push(Kept::all(start.min(end)..end));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[u32]) -> Vec<Token> {
        ids.iter().map(|id| Token { symbol: Symbol::Id(*id), weight: 1.0 }).collect()
    }

    #[test]
    fn instructions_are_cut_off() {
        let talk = ids(&[QWEN_TURN, 5, 6, QWEN_TURN, 872, 198, 7, 8, QWEN_TURN, 9]);
        assert_eq!(from_second_turn(&talk, 1), [Kept::all(6..10)]);
        assert_eq!(whole_second_turn(&talk, 1), [Kept::all(3..10)]);
        assert_eq!(from_second_turn(&ids(&[QWEN_TURN, 5]), 1), [Kept::all(0..2)]);
        assert_eq!(from_second_turn(&ids(&[1, 2, 3]), 1), [Kept::all(2..3)]);
        let talk = ids(&[1, LLAMA_NAME, 9, LLAMA_NAMED, LLAMA_NAME, 882, LLAMA_NAMED, 271, 4, LLAMA_END, 5]);
        assert_eq!(user_turn(&talk, 1), [Kept::all(8..10)]);
    }

    #[test]
    fn pictures_before_the_user_are_kept_in_part() {
        let mut talk = ids(&[LLAMA_NAME, 9, LLAMA_NAMED]);
        talk.extend((0..4).map(|row| Token { symbol: Symbol::Picture { picture: 0, row }, weight: 1.0 }));
        talk.extend(ids(&[LLAMA_NAME, 882, LLAMA_NAMED, 271, 4, LLAMA_END]));
        assert_eq!(user_turn(&talk, 2), [Kept { tokens: 3..7, step: 2 }, Kept::all(11..13)]);
    }
}
