//! Classes that declare themselves and never run, from a list of names and types.
//!
//! An input is `[name, type]` or `[name, type, flags]`. The type is a name, or an object for a choice that
//! brings inputs of its own. The flags: `o` optional, `c` a control follows, `f` takes links only, `u` an upload
//! button, `d` choices inside the text.

use graph::{
    Autogrow, Call, Catalogue, Failure, GrowingNames, Input, Kind, Literal, NodeClass, Outcome, Schema,
};

/// A class that only declares itself.
struct Declared(Schema);

impl NodeClass for Declared {
    fn schema(&self) -> Schema {
        self.0.clone()
    }

    fn run(&self, _: &Call) -> Result<Outcome, Failure> {
        Ok(Outcome::default())
    }
}

/// A constant from its JSON.
pub(crate) fn literal(json: &str) -> Literal {
    serde_json::from_str(json).unwrap()
}

/// The classes of a list.
pub(crate) fn catalogue(list: &str) -> Catalogue {
    let list = literal(list);
    let mut catalogue = Catalogue::default();
    for (class, inputs) in list.as_map().unwrap() {
        let mut schema = Schema::new(class.as_str(), "test");
        schema.inputs = read_inputs(inputs);
        catalogue.add(Declared(schema));
    }
    catalogue
}

fn read_inputs(list: &Literal) -> Vec<Input> {
    list.as_list().unwrap().iter().map(read_input).collect()
}

fn read_input(input: &Literal) -> Input {
    let [name, kind, rest @ ..] = input.as_list().unwrap() else { panic!("{input:?} has no type") };
    let name = name.as_text().unwrap();
    let flags = rest.first().and_then(Literal::as_text).unwrap_or_default();
    let mut input = Input::new(name, read_kind(kind));
    for flag in flags.chars() {
        input = match flag {
            'o' => input.optional(),
            'c' => input.with("control_after_generate", true),
            'f' => input.with("forceInput", true),
            'u' => input.with("image_upload", true),
            'd' => input.with("dynamicPrompts", true),
            _ => panic!("{name} has an unknown flag {flag}"),
        };
    }
    input
}

fn read_kind(kind: &Literal) -> Kind {
    if let Some(options) = kind.as_map() {
        return Kind::DynamicChoice(
            options.iter().map(|(key, inputs)| (key.clone(), read_inputs(inputs))).collect(),
        );
    }
    match kind.as_text().unwrap() {
        "INT" => Kind::Int,
        "FLOAT" => Kind::Float,
        "STRING" => Kind::Text,
        "BOOLEAN" => Kind::Boolean,
        "COMBO" => Kind::Choice(vec!["first".into(), "second".into()]),
        "AUTOGROW" => Kind::Autogrow(Box::new(Autogrow {
            input: Input::socket("image", "IMAGE"),
            names: GrowingNames::Counted { prefix: "image".to_owned(), max: 10 },
            min: 1,
        })),
        socket => Kind::Socket(socket.to_owned()),
    }
}
