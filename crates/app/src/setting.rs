//! `lariat setting`: what holds for all volumes.

use anyhow::{Context as _, Result};
use api_types::Setting;
use api_types::settings::{ALL, SettingDefinition, SettingKind};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams, PostParams};
use serde::Serialize;
use serde_json::json;

use crate::client::ApiArguments;
use crate::complete;
use crate::inventory::{api_error, inside, list};
use crate::output::{self, Cell, Column, Format, Listing, OutputArgument, Row, Tone, watch};
use crate::{runtime, suggest};

#[derive(Subcommand)]
pub(crate) enum SettingCommand {
    /// Show all settings, those that nobody set included
    List(Listing),
    /// Show the value of one setting
    Get(GetArguments),
    /// Set one setting, for all volumes and from now on
    Set(SetArguments),
}

#[derive(Args)]
pub(crate) struct GetArguments {
    #[arg(add = complete::settings())]
    pub name: String,
    #[command(flatten)]
    pub api: ApiArguments,
    #[command(flatten)]
    pub output: OutputArgument,
}

#[derive(Args)]
pub(crate) struct SetArguments {
    #[arg(add = complete::settings())]
    pub name: String,
    pub value: String,
    #[command(flatten)]
    pub api: ApiArguments,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SettingRow {
    pub name: &'static str,
    pub value: String,
    pub default: &'static str,
    /// Somebody has set it, be it to its default.
    pub is_set: bool,
    /// Why the value that was set is not used.
    pub problem: Option<String>,
    pub values: String,
    pub description: &'static str,
}

impl Row for SettingRow {
    const COLUMNS: &'static [Column] = &[
        Column::new("NAME"),
        Column::new("VALUE").shrinks(),
        Column::new("SET"),
        Column::new("DESCRIPTION").shrinks().spare(1),
        Column::new("DEFAULT").wide(),
        Column::new("VALUES").wide().shrinks(),
    ];
    const NONE: &'static str = "There are no settings.";

    fn name(&self) -> String {
        format!("setting/{}", self.name)
    }

    fn cells(&self, _: Timestamp) -> Vec<Cell> {
        let (value, about) = match &self.problem {
            Some(problem) => (
                Cell::toned(&self.value, Tone::Bad),
                Cell::toned(problem, Tone::Bad),
            ),
            None => (Cell::new(&self.value), Cell::new(self.description)),
        };
        vec![
            Cell::new(self.name),
            value,
            Cell::toned(if self.is_set { "yes" } else { "" }, Tone::Busy),
            about,
            Cell::new(self.default),
            Cell::new(&self.values),
        ]
    }
}

/// One row for each setting that is known, in the order of names.
pub(crate) fn rows(objects: &[Setting]) -> Vec<SettingRow> {
    let row = |definition: &'static SettingDefinition| {
        let object = objects
            .iter()
            .find(|object| object.name_any() == definition.name);
        let read = object.map(|object| definition.parse(object.value()));
        let problem = read.as_ref().and_then(|read| read.as_ref().err());
        SettingRow {
            name: definition.name,
            value: match &read {
                Some(Ok(value)) => value.clone(),
                Some(Err(_)) | None => definition.default.to_owned(),
            },
            default: definition.default,
            is_set: object.is_some(),
            problem: problem.map(|problem| format!("the default holds: {problem}")),
            values: values(definition.kind),
            description: definition.description,
        }
    };
    ALL.iter().map(row).collect()
}

fn values(kind: SettingKind) -> String {
    match kind {
        SettingKind::Flag => "true or false".to_owned(),
        SettingKind::WholeNumber { min, max: i64::MAX } => format!("{min} or more"),
        SettingKind::WholeNumber { min, max } => format!("{min} to {max}"),
        SettingKind::Choice(choices) => choices.join(", "),
        SettingKind::Text => "text".to_owned(),
    }
}

pub(crate) fn run(command: SettingCommand) -> Result<()> {
    runtime::block_on(async {
        match command {
            SettingCommand::List(arguments) => list_settings(arguments).await,
            SettingCommand::Get(arguments) => get(arguments).await,
            SettingCommand::Set(arguments) => set(arguments).await,
        }
    })
}

async fn list_settings(listing: Listing) -> Result<()> {
    let client = listing.api.open().await?;
    let fetch = async || Ok(rows(&list(inside(&client), "settings", None).await?));
    let changes = || watch::pokes::<Setting>(inside(&client));
    listing.show(fetch, changes).await
}

fn definition(name: &str) -> Result<&'static SettingDefinition> {
    let known = ALL.iter().map(|definition| definition.name);
    SettingDefinition::find(name)
        .ok_or_else(|| suggest::unknown("setting", name, known, "lariat setting list"))
}

async fn get(arguments: GetArguments) -> Result<()> {
    let definition = definition(&arguments.name)?;
    let client = arguments.api.open().await?;
    let objects: Vec<Setting> = list(inside(&client), "settings", None).await?;
    let row = rows(&objects)
        .into_iter()
        .find(|row| row.name == definition.name)
        .context("a known setting has a row")?;
    match arguments.output.output {
        None => output::say(&format!("{}\n", row.value)),
        Some(format @ (Format::Json | Format::Yaml)) => {
            output::say(&output::document(&row, format)?)
        }
        Some(format @ (Format::Wide | Format::Name)) => output::show(&[row], Some(format)),
    }
}

async fn set(arguments: SetArguments) -> Result<()> {
    let definition = definition(&arguments.name)?;
    // Said here in the setting's own words, before anything is written.
    let value = definition.parse(&arguments.value)?;
    let client = arguments.api.open().await?;
    let settings: kube::Api<Setting> = inside(&client);
    let name = definition.name;
    let found = settings.get_opt(name).await;
    let before = found.map_err(|error| api_error(error, "read setting", name))?;
    match &before {
        Some(_) => {
            let patch = Patch::Merge(json!({"value": value}));
            let done = settings.patch(name, &PatchParams::default(), &patch).await;
            done.map_err(|error| api_error(error, "set setting", name))?;
        }
        None => {
            let mut object = Setting::new(name, api_types::SettingValue::default());
            object.spec.value.clone_from(&value);
            let done = settings.create(&PostParams::default(), &object).await;
            done.map_err(|error| api_error(error, "set setting", name))?;
        }
    }
    let before = before.as_ref().map(Setting::value);
    output::say(&changed(definition, before, &value))
}

fn changed(definition: &SettingDefinition, before: Option<&str>, value: &str) -> String {
    let old = before.map_or_else(
        || format!("{} by default", definition.default),
        str::to_owned,
    );
    format!(
        "setting {} is now {value} (it was {old})\n",
        definition.name
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::inventory::sample;
    use crate::output::golden;
    use crate::output::table::Screen;

    #[test]
    fn settings_are_listed_with_what_holds() {
        let setting = |name: &str, value: &str| -> Setting {
            serde_json::from_value(json!({"metadata": {"name": name}, "value": value})).unwrap()
        };
        let objects = [
            setting("default-replica-count", "2"),
            setting("storage-over-provisioning-percentage", "plenty"),
        ];
        let rows = rows(&objects);
        assert_eq!(rows.len(), ALL.len());
        let few: Vec<SettingRow> = rows
            .into_iter()
            .filter(|row| row.is_set || row.name.starts_with("auto"))
            .collect();
        let screen = Screen {
            width: Some(120),
            ..Screen::default()
        };
        let text = output::list(&few, None, screen, sample::now()).unwrap();
        golden::check("setting-list", &text);
        let wide = Screen::default();
        let text = output::list(&few, Some(Format::Wide), wide, sample::now()).unwrap();
        golden::check("setting-list-wide", &text);
    }

    #[test]
    fn what_is_set_and_what_cannot_be_is_said() {
        let salvage = definition("auto-salvage").expect("a setting");
        let mut page = changed(salvage, None, "false") + &changed(salvage, Some("false"), "true");
        for (name, value) in [
            ("auto-salvage", "perhaps"),
            ("default-replica-count", "0"),
            ("default-replica-count", "many"),
            ("auto-salvge", "true"),
            ("nothing", "true"),
        ] {
            let error = match definition(name) {
                Ok(definition) => definition.parse(value).expect_err(name).into(),
                Err(error) => error,
            };
            page += &format!("{}\n", crate::exit::told(&error));
        }
        golden::check("setting-set", &page);
    }
}
